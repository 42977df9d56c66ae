# frozen_string_literal: true

Puppet::Type.type(:kick).provide(:agent) do
  desc "Has this node's agent find the receivers and send the triggers."

  def note
    kicks.note(receivers)
  end

  def restart
    more = { 'name' => resource[:name], 'tags' => tags, 'ttl' => resource[:ttl] }
    kicks.kick(resource, receivers.merge(more), patience: resource[:timeout])
  end

  private

  def receivers
    { 'roles' => resource[:roles] || [], 'query' => resource[:query] }
  end

  def tags
    [resource[:tag]].flatten.compact.map(&:to_s)
  end

  # Loaded on first use: a Puppet server loads providers, too, and sends no kicks.
  def kicks
    require_relative '../../../puppet_x/localpuppet/kicks'
    PuppetX::Localpuppet::Kicks
  end
end
