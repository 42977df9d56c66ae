# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/inventory'

# Returns classes of the nodes that an expression of puppetdbquery finds.
#
# Asked while the catalog is compiled; see docs/queries.md. When nobody can be asked the catalog does
# not compile: "there are none" and "I could not ask" are different answers.
Puppet::Functions.create_function(:query_resources) do
  # @param arguments An expression for nodes (`false` for all), one for resources, and whether the
  #   result is a hash by node.
  # @return [Variant[Array[Hash], Hash[String, Array[Hash]]]] The resources.
  # @example
  #   $apache = query_resources('os.family=Debian', 'Class[~"Apache.*"]')
  dispatch :ask do
    repeated_param 'Data', :arguments
  end

  def ask(*arguments)
    PuppetX::Localpuppet::Inventory.ask('query_resources', arguments)
  end
end
