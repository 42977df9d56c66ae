# frozen_string_literal: true

require_relative 'agent'

module PuppetX
  module Localpuppet
    # Queries other nodes' data through this node's agent, for the query functions.
    #
    # The agent defines the functions' names, arguments and results. If the agent
    # cannot answer, this raises an error and the catalog does not compile.
    module Inventory
      # Without an agent, the node first reads the whole inventory from the bus.
      PATIENCE = 60
      LIMIT = 33 * 1024 * 1024

      # @param function [String] the function, without `localpuppet::`
      # @param arguments [Array] its arguments
      # @return what the function returns
      # @raise [Agent::Error] one line
      def self.ask(function, arguments)
        question = { 'function' => function, 'arguments' => arguments, 'run' => Agent.run }
        answer = Agent.call('query', question, patience: PATIENCE, limit: LIMIT)
        raise Agent::Error, "#{function}(): the agent's answer holds no result" unless answer.key?('answer')

        Array(answer['warnings']).each { |text| Puppet.warning("#{function}(): #{Program.line(text)}") }
        answer['answer']
      end
    end
  end
end
