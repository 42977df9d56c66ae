# frozen_string_literal: true

require 'puppet/resource/catalog'
require 'puppet/indirector/code'
require_relative '../../../puppet_x/localpuppet/catalogs'
require_relative '../../../puppet_x/localpuppet/exports'

# The catalog "cache": Puppet saves a compiled catalog here before it applies it, and this terminus
# publishes its exported resources and records the catalog. It never finds a catalog.
class Puppet::Resource::Catalog::Localpuppet < Puppet::Indirector::Code
  desc 'Offers the exported resources of a catalog to other nodes, and records the catalog.'

  def find(_request); end

  def save(request)
    PuppetX::Localpuppet::Exports.offer(request.instance)
    PuppetX::Localpuppet::Catalogs.keep(request.instance)
  end

  def destroy(_request); end
end
