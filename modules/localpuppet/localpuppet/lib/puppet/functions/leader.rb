# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/agent'

# Returns the holder of a lease. If the lease is free, this node takes it, and its agent renews it.
#
#     if leader('db_master') == $facts['networking']['fqdn'] {
#       include profile::db::master
#     } else {
#       include profile::db::replica
#     }
#
# The call is evaluated during compilation. With `puppet apply`, that is on the node; a Puppet
# server would ask the *server's* agent, so write `Deferred('leader', ['db_master'])` there. If the
# agent cannot answer, the catalog does not compile: an outage never means "another node leads". A
# noop run, and a catalog that is only compiled, take no lease.
Puppet::Functions.create_function(:leader) do
  # @param name The lease: up to 100 letters, digits and `_ . -`, without a leading `.` or `-`.
  # @param ttl Seconds after which the lease of a dead node is free.
  # @return [Variant[String[1], Boolean[false]]] The name of the holder (its certname,
  #   in lower case); `false` if there is no leader and this run may not take the lease, or if a
  #   lock or a command has it.
  # @example
  #   $master = leader('db_master', 30)
  dispatch :leader do
    param 'Pattern[/\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\z/]', :name
    optional_param 'Integer[5, 3600]', :ttl
    return_type 'Variant[String[1], Boolean[false]]'
  end

  def leader(name, ttl = 60)
    agent = PuppetX::Localpuppet::Agent
    take = !Puppet[:noop] && !Puppet.run_mode.server?
    question = { 'name' => name, 'ttl' => ttl, 'take' => take, 'run' => agent.run }
    holder = agent.call('leader', question)['holder']
    return holder || false if holder.nil? || holder.is_a?(String)

    raise agent::Error, "the agent's answer to leader('#{name}') is not a node name"
  end
end
