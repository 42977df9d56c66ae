# frozen_string_literal: true

Puppet::Type.type(:cluster_lock).provide(:agent) do
  desc "Asks this node's agent for the lock."

  class << self
    # Puppet calls this when the transaction is over, whatever became of it.
    def post_resource_eval
      release
    end

    def remember(name)
      if @taken.nil?
        @taken = {}
        # An exception that ends the transaction itself (a signal, say) goes past the hook above.
        at_exit { release }
      end
      @taken[name] = Process.pid
    end

    private

    # A forked child inherits what we remember, and must leave it alone.
    def release
      (@taken || {}).select { |_, pid| pid == Process.pid }.keys.reverse_each do |name|
        @taken.delete(name)
        agent = PuppetX::Localpuppet::Agent
        agent.call('unlock', { 'name' => name, 'run' => agent.run })
      rescue Puppet::Error => e
        Puppet.err("Cluster_lock[#{name}]: could not be released: #{e.message}")
      end
    end
  end

  def take
    # Loaded when it is needed: a Puppet server loads providers, too, and takes no locks.
    require_relative '../../../puppet_x/localpuppet/agent'
    agent = PuppetX::Localpuppet::Agent
    wait = resource[:wait]
    question = { 'name' => resource[:name], 'wait' => wait, 'run' => agent.run }
    agent.call('lock', question, patience: wait + agent::PATIENCE)
    self.class.remember(resource[:name])
  rescue agent::Refused
    raise
  rescue agent::Error
    # The answer was lost, so we may have the lock: it is given back in any case.
    self.class.remember(resource[:name])
    raise
  end
end
