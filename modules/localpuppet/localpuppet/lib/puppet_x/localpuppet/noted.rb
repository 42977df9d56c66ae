# frozen_string_literal: true

require 'json'
require_relative 'agent'

module PuppetX
  module Localpuppet
    # What this catalog has that others hear of, written down for the supervisor; without one nobody
    # reads it.
    module Noted
      # @param file [String] the name of a file in the public directory of the run
      # @param what [String] what it is, for the warning
      # @param line [Hash] what is noted
      def self.note(file, what, line)
        return unless Agent.run

        File.open(File.join(Puppet[:publicdir], file), 'a', 0o600) { |notes| notes.puts(JSON.generate(line)) }
      rescue SystemCallError => e
        Puppet.warning("the inventory does not hear of #{what}: #{e.class.new.message}")
      end
    end
  end
end
