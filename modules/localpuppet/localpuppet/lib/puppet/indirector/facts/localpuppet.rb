# frozen_string_literal: true

require 'puppet/node/facts'
require 'puppet/indirector/code'

# Storeconfigs wants a place for facts. A supervised run keeps them elsewhere (its route_file), and any
# other Puppet is to leave nothing behind.
class Puppet::Node::Facts::Localpuppet < Puppet::Indirector::Code
  desc 'Keeps no facts: a run of localpuppet has a place of its own for them.'

  def find(_request); end

  def save(_request); end

  def destroy(_request); end
end
