# frozen_string_literal: true

require 'json'
require_relative 'agent'

module PuppetX
  module Localpuppet
    # Records data of this catalog that the supervisor publishes; without a supervisor, it records
    # nothing.
    module Noted
      # @param file [String] the name of a file in the public directory of the run
      # @param what [String] a description of the data, for the warning
      # @param line [Hash] the data
      def self.note(file, what, line)
        return unless Agent.run

        text = JSON.generate({ schema: 1, **line })
        text = Sealed.masked(text) if defined?(Sealed)
        File.open(File.join(Puppet[:publicdir], file), 'a', 0o600) { |notes| notes.puts(text) }
      rescue SystemCallError => e
        Puppet.warning("the inventory does not hear of #{what}: #{e.class.new.message}")
      end
    end
  end
end
