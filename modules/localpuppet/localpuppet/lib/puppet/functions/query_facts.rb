# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/query_function'

# Returns facts of the nodes that an expression of puppetdbquery finds.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:query_facts, PuppetX::Localpuppet::QueryFunction) do
  # @param arguments The expression, and a list of facts.
  # @return [Hash[String, Hash]] Node to fact to value; `a.b` is called `a_b`.
  # @example
  #   $facts = query_facts('Class[Apache]', ['osfamily', 'networking.ip'])
  asks 'query_facts'
end
