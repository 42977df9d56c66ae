# frozen_string_literal: true

require_relative 'inventory'

module PuppetX
  module Localpuppet
    # The base of the query functions, each of which has two names.
    class QueryFunction < Puppet::Functions::Function
      # @param function [String] the function, without `localpuppet::`
      def self.asks(function)
        dispatch(:ask) { repeated_param 'Data', :arguments }
        define_method(:ask) { |*arguments| Inventory.ask(function, arguments) }
      end
    end
  end
end
