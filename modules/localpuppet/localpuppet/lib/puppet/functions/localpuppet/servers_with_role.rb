# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/inventory'

# Returns the servers that have one of some roles.
#
# Asked while the catalog is compiled; see docs/queries.md. When nobody can be asked the catalog does
# not compile: "there are none" and "I could not ask" are different answers.
Puppet::Functions.create_function(:'localpuppet::servers_with_role') do
  # @param arguments One role or more; a role is taken literally. An array is a list of roles.
  # @return [Array[Hash]] The facts of each server, sorted by fqdn.
  # @example
  #   $web = localpuppet::servers_with_role('web', 'frontend')
  dispatch :ask do
    repeated_param 'Data', :arguments
  end

  def ask(*arguments)
    PuppetX::Localpuppet::Inventory.ask('servers_with_role', arguments)
  end
end
