# frozen_string_literal: true

require 'puppet/node'
require 'puppet/indirector/code'

# Storeconfigs requires a terminus for nodes; the node document describes a node.
class Puppet::Node::Localpuppet < Puppet::Indirector::Code
  desc 'Stores no nodes: the ENC classifies them.'

  def find(_request); end

  def save(_request); end

  def destroy(_request); end
end
