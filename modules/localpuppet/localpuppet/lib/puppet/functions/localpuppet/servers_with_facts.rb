# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/query_function'

# Returns the servers whose facts match all expressions.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:'localpuppet::servers_with_facts', PuppetX::Localpuppet::QueryFunction) do
  # @param arguments Expressions in mcollective's form: `fact=value`, `fact=/regexp/`,
  #   `fact>=number`, `a.b!=value`.
  # @return [Array[Hash]] The facts of each server, sorted by fqdn.
  # @example
  #   $new = localpuppet::servers_with_facts('os.family=Debian', 'processors.count>=4')
  asks 'servers_with_facts'
end
