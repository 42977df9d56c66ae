# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/inventory'

# Returns the servers whose facts match all of some expressions.
#
# Asked while the catalog is compiled; see docs/queries.md. When nobody can be asked the catalog does
# not compile: "there are none" and "I could not ask" are different answers.
Puppet::Functions.create_function(:servers_with_facts) do
  # @param arguments mcollective's: `fact=value`, `fact=/regexp/`, `fact>=number`, `a.b!=value`.
  # @return [Array[Hash]] The facts of each server, sorted by fqdn.
  # @example
  #   $new = servers_with_facts('os.family=Debian', 'processors.count>=4')
  dispatch :ask do
    repeated_param 'Data', :arguments
  end

  def ask(*arguments)
    PuppetX::Localpuppet::Inventory.ask('servers_with_facts', arguments)
  end
end
