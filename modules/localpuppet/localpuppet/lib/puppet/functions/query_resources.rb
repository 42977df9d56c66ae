# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/query_function'

# Returns classes of the nodes that an expression of puppetdbquery finds.
#
# The call is evaluated during compilation. If the inventory is unreachable, the catalog does not
# compile: an outage never looks like an empty result.
Puppet::Functions.create_function(:query_resources, PuppetX::Localpuppet::QueryFunction) do
  # @param arguments An expression for nodes (`false` for all), one for resources, and whether the
  #   result is a hash by node.
  # @return [Variant[Array[Hash], Hash[String, Array[Hash]]]] The resources.
  # @example
  #   $apache = query_resources('os.family=Debian', 'Class[~"Apache.*"]')
  asks 'query_resources'
end
