# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/inventory'

# Returns the first server that has a role, by fqdn.
#
# Asked while the catalog is compiled; see docs/queries.md. When nobody can be asked the catalog does
# not compile: "there are none" and "I could not ask" are different answers.
Puppet::Functions.create_function(:server_with_role) do
  # @param arguments The role, or several, and last what to return where there is none. Without a
  #   fallback that is undef. A server that could not be asked for is never replaced by it.
  # @return [Any] The facts of the server, or the fallback.
  # @example
  #   $proxy = server_with_role('haproxy', { 'hostname' => 'localhost' })
  dispatch :ask do
    repeated_param 'Data', :arguments
  end

  def ask(*arguments)
    PuppetX::Localpuppet::Inventory.ask('server_with_role', arguments)
  end
end
