# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/query_function'

# Returns nodes, or facts of them, that an expression finds.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:'localpuppet::query', PuppetX::Localpuppet::QueryFunction) do
  # @param arguments The expression, as for `query_nodes`, and the paths of facts.
  # @return [Variant[Array[String], Hash[String, Hash]]] The nodes' names, sorted; with facts a hash
  #   of node to path to value, undef for a fact that the node lacks.
  # @example
  #   $web = localpuppet::query('role=web and os.family=Debian', ['networking.ip'])
  asks 'query'
end
