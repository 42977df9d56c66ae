# frozen_string_literal: true

require 'puppet/resource/catalog'
require 'puppet/indirector/code'
require_relative '../../../puppet_x/localpuppet/exports'

# Where Puppet "caches" a catalog that it has just compiled: what it exports is handed over here,
# before anything of it is applied. Nothing is ever found here.
class Puppet::Resource::Catalog::Localpuppet < Puppet::Indirector::Code
  desc 'Offers the exported resources of a catalog to other nodes, over the bus of localpuppet.'

  def find(_request); end

  def save(request)
    PuppetX::Localpuppet::Exports.offer(request.instance)
  end

  def destroy(_request); end
end
