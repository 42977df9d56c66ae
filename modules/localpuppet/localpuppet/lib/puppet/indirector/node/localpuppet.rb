# frozen_string_literal: true

require 'puppet/node'
require 'puppet/indirector/code'

# Storeconfigs wants a place for nodes; what a node is its node document says.
class Puppet::Node::Localpuppet < Puppet::Indirector::Code
  desc 'Keeps no nodes: the ENC says what a node is.'

  def find(_request); end

  def save(_request); end

  def destroy(_request); end
end
