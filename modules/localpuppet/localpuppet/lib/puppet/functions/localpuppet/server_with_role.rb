# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/query_function'

# Returns the first server that has a role, by fqdn.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:'localpuppet::server_with_role', PuppetX::Localpuppet::QueryFunction) do
  # @param arguments The role, or several, and last a fallback (default undef), which is returned if
  #   no server has the role. An outage never returns the fallback.
  # @return [Any] The facts of the server, or the fallback.
  # @example
  #   $proxy = localpuppet::server_with_role('haproxy', { 'hostname' => 'localhost' })
  asks 'server_with_role'
end
