# frozen_string_literal: true

require 'puppet/resource'
require 'puppet/indirector/code'
require_relative '../../../puppet_x/localpuppet/exports'

# Where a collector finds what other nodes export.
class Puppet::Resource::Localpuppet < Puppet::Indirector::Code
  desc 'Finds resources that other nodes export, over the bus of localpuppet.'

  def search(request)
    PuppetX::Localpuppet::Exports.collect(request.key, request.options[:filter], request.options[:scope])
  end

  def find(_request); end

  def save(_request); end

  def destroy(_request); end

  # A resource of another machine is never asked for through this one.
  def allow_remote_requests?
    false
  end
end
