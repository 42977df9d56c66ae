# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/query_function'

# Returns the inventory's answer to a PuppetDB query in PQL or as an array.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:'localpuppet::puppetdb_query', PuppetX::Localpuppet::QueryFunction) do
  # @param arguments The query: docs/reference/puppetdb-queries.md lists what is answered. Other
  #   queries are rejected.
  # @return [Array[Hash]] The rows of the answer.
  # @example
  #   $web = localpuppet::puppetdb_query('inventory[certname] { facts.role = "web" }')
  asks 'puppetdb_query'
end
