# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/inventory'

# Answers a query of PuppetDB, in PQL or as an array, from the inventory.
#
# Asked while the catalog is compiled; see docs/queries.md. When nobody can be asked the catalog does
# not compile: "there are none" and "I could not ask" are different answers.
Puppet::Functions.create_function(:'localpuppet::puppetdb_query') do
  # @param arguments The query; docs/queries.md says what is answered. The rest is refused by name.
  # @return [Array[Hash]] The rows of the answer.
  # @example
  #   $web = localpuppet::puppetdb_query('inventory[certname] { facts.role = "web" }')
  dispatch :ask do
    repeated_param 'Data', :arguments
  end

  def ask(*arguments)
    PuppetX::Localpuppet::Inventory.ask('puppetdb_query', arguments)
  end
end
