# frozen_string_literal: true

require 'puppet/node/facts'
require 'puppet/indirector/code'

# Storeconfigs requires a terminus for facts. A supervised run stores facts elsewhere (its
# route_file), and any other Puppet must store nothing.
class Puppet::Node::Facts::Localpuppet < Puppet::Indirector::Code
  desc 'Stores no facts: a run of localpuppet stores them elsewhere.'

  def find(_request); end

  def save(_request); end

  def destroy(_request); end
end
