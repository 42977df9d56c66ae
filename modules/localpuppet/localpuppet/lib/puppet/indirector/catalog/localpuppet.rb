# frozen_string_literal: true

require 'puppet/resource/catalog'
require 'puppet/indirector/code'
require_relative '../../../puppet_x/localpuppet/exports'

# The catalog "cache": Puppet saves a compiled catalog here before it applies it, and this terminus
# publishes its exported resources. It never finds a catalog.
class Puppet::Resource::Catalog::Localpuppet < Puppet::Indirector::Code
  desc 'Offers the exported resources of a catalog to other nodes, over the bus of localpuppet.'

  def find(_request); end

  def save(request)
    PuppetX::Localpuppet::Exports.offer(request.instance)
  end

  def destroy(_request); end
end
