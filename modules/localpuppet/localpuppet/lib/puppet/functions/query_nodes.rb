# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/query_function'

# Returns the nodes that an expression of puppetdbquery finds.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:query_nodes, PuppetX::Localpuppet::QueryFunction) do
  # @param arguments The expression, and the name or dotted path of a fact.
  # @return [Array] The nodes' names, sorted; with a fact its values on the nodes that have it.
  # @example
  #   $hosts = query_nodes('Class[Profile::Loadbalancer] and os.family=Debian', 'fqdn')
  asks 'query_nodes'
end
