# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/inventory'

# Returns nodes, or facts of them, that an expression finds.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:'localpuppet::query') do
  # @param arguments The expression, as for `query_nodes`, and the paths of facts.
  # @return [Variant[Array[String], Hash[String, Hash]]] The nodes' names, sorted; with facts a hash
  #   of node to path to value, undef for a fact that the node lacks.
  # @example
  #   $web = localpuppet::query('role=web and os.family=Debian', ['networking.ip'])
  dispatch :ask do
    repeated_param 'Data', :arguments
  end

  def ask(*arguments)
    PuppetX::Localpuppet::Inventory.ask('query', arguments)
  end
end
