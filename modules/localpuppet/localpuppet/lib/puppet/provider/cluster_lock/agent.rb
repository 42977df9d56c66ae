# frozen_string_literal: true

Puppet::Type.type(:cluster_lock).provide(:agent) do
  desc "Takes the lock through this node's agent."

  class << self
    # Puppet calls this at the end of the transaction, whatever its result.
    def post_resource_eval
      release
    end

    def remember(name)
      if @taken.nil?
        @taken = {}
        # An exception that ends the transaction itself (a signal) bypasses the hook above.
        at_exit { release }
      end
      @taken[name] = Process.pid
    end

    private

    # A forked child inherits `@taken`, and must not release these locks.
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
    # Loaded on first use: a Puppet server loads providers, too, and takes no locks.
    require_relative '../../../puppet_x/localpuppet/agent'
    agent = PuppetX::Localpuppet::Agent
    wait = resource[:wait]
    question = { 'name' => resource[:name], 'wait' => wait, 'run' => agent.run }
    agent.call('lock', question, patience: wait + agent::PATIENCE)
    self.class.remember(resource[:name])
  rescue agent::Refused
    raise
  rescue agent::Error
    # The answer was lost, so the lock may be taken: it is released in any case.
    self.class.remember(resource[:name])
    raise
  end
end
