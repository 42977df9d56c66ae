# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/agent'

# Says who holds a lease. A lease that nobody holds is taken by this node, and its agent renews it.
#
#     if leader('db_master') == $facts['networking']['fqdn'] {
#       include profile::db::master
#     } else {
#       include profile::db::replica
#     }
#
# It is asked while the catalog is compiled. With `puppet apply` that is on the node; under a Puppet
# server the *server's* agent would be asked, so write `Deferred('leader', ['db_master'])` there.
# When nobody can be asked the catalog does not compile: "I do not know" is never "it is not me".
# A noop run, or a catalog that is only compiled, asks and takes nothing.
Puppet::Functions.create_function(:leader) do
  # @param name The lease: up to 100 letters, digits and `_ . -`, the first no `.` or `-`.
  # @param ttl Seconds after which the lease of a node that died is free.
  # @return [Variant[String[1], Boolean[false]]] The name of the node that holds it (its certname,
  #   in lower case); `false` when nobody leads and this run may not take it, or a lock or a command
  #   has it.
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
    holder = agent.call('leader', { 'name' => name, 'ttl' => ttl, 'take' => take })['holder']
    return holder || false if holder.nil? || holder.is_a?(String)

    raise agent::Error, "the agent's answer to leader('#{name}') is not a node name"
  end
end
