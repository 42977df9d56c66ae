# frozen_string_literal: true

require 'puppet/resource'
require 'puppet/indirector/code'
require_relative '../../../puppet_x/localpuppet/exports'

# Finds exported resources of other nodes for collectors.
class Puppet::Resource::Localpuppet < Puppet::Indirector::Code
  desc 'Finds resources that other nodes export, over the bus of localpuppet.'

  def search(request)
    PuppetX::Localpuppet::Exports.collect(request.key, request.options[:filter], request.options[:scope])
  end

  def find(_request); end

  def save(_request); end

  def destroy(_request); end

  # Other machines never request resources through this terminus.
  def allow_remote_requests?
    false
  end
end
