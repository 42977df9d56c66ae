# frozen_string_literal: true

require_relative 'agent'

module PuppetX
  module Localpuppet
    # Asks this node's agent about other nodes, for the functions of that kind.
    #
    # What the functions are called, how many arguments they take and what they return is the
    # agent's to say (docs/queries.md). There is no answer that stands for "could not ask": then it
    # is an error, and the catalog does not compile.
    module Inventory
      # A node without an agent reads the whole inventory from the bus first.
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
