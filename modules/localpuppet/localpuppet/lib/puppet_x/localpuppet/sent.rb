# frozen_string_literal: true

require_relative 'agent'

module PuppetX
  module Localpuppet
    # The result of a trigger on each node, from the agent's answer.
    module Sent
      # @param log An object with `notice` for dropped triggers: a resource, or Puppet itself
      # @param receivers [Array<String>] the nodes that are to run
      # @param answer [Hash] the agent's answer: `sent`, `dropped`
      # @return [Array<String>] the nodes to which it was sent
      # @raise [Puppet::Error] the answer omits a receiver
      def self.to(log, receivers, answer)
        sent = [answer['sent']].flatten.compact
        dropped = [answer['dropped']].flatten.grep(Hash)
        dropped.each do |drop|
          log.notice(Program.line("not sent to #{drop['node']}: #{drop['reason']}"))
        end
        silent = receivers - sent - dropped.map { |drop| drop['node'] }
        return sent if silent.empty?

        raise Puppet::Error, "the agent did not say whether it sent to #{silent.join(', ')}"
      end
    end
  end
end
