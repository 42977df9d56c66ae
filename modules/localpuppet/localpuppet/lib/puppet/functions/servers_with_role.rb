# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/query_function'

# Returns the servers that have one of the roles.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:servers_with_role, PuppetX::Localpuppet::QueryFunction) do
  # @param arguments One role or more; a role is taken literally. An array is a list of roles.
  # @return [Array[Hash]] The facts of each server, sorted by fqdn.
  # @example
  #   $web = servers_with_role('web', 'frontend')
  asks 'servers_with_role'
end
