# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:bus) do
  desc <<~DOC
    Sends the trigger over the bus that this node's agent is configured for. This is the default.

    The agent answers on its UNIX socket; without an agent, the `localpuppet` executable sends it.
  DOC

  defaultfor feature: :posix

  # The engine that must send it; nil for the configured one.
  def engine
    nil
  end

  def restart
    hosts = resource[:hosts]
    return resource.notice('no hosts, so nothing was sent') if hosts.empty?

    answer = agent.call('trigger', message(hosts), patience: resource[:timeout])
    sent = PuppetX::Localpuppet::Sent.to(resource, hosts, answer)
    resource.info("sent to #{sent.join(', ')}") unless sent.empty?
  end

  private

  # Loaded on first use: a Puppet server loads providers, too, and sends no triggers.
  def agent
    require 'puppet_x/localpuppet/agent'
    require 'puppet_x/localpuppet/sent'
    PuppetX::Localpuppet::Agent
  rescue LoadError
    raise Puppet::Error, 'the module localpuppet is not on the modulepath (it belongs beside the module trigger)'
  end

  def message(hosts)
    {
      'name' => resource[:name],
      'hosts' => hosts,
      'tags' => [resource[:tag]].flatten.compact.map(&:to_s),
      'ttl' => resource[:ttl],
      'keyprefix' => resource[:keyprefix],
      'keyttl' => resource[:keyttl],
      'engine' => engine,
      'run' => agent.run
    }
  end
end
