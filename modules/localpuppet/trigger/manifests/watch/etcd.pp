# @summary Runs Puppet on triggers for this node on etcd: puppet-trigger's class with a new agent.
#
# The parameters and their defaults are puppet-trigger's. The class stops and removes the loop
# around `etcdctl watch`, the task spooler and their init script: `localpuppet agent` replaces them.
#
# @example As before
#   class { 'trigger::watch::etcd':
#     run_cmd => 'puppet apply /etc/puppet/site.pp',
#   }
#
# @param trigger_hostname This node's name in triggers.
# @param etcdctl_cmd Ignored, with a warning: the agent does not call etcdctl.
# @param etcdctl_prefix The prefix of this node's triggers on etcd; must end in `/hosts`.
# @param run_cmd The command for a trigger.
# @param etcdwatch_pwd The directory of the old loop, to be removed.
# @param etcd Servers, certificates and so on, as under `buses.etcd` of localpuppet.yaml.
class trigger::watch::etcd (
  String[1] $trigger_hostname = $facts['networking']['fqdn'],
  String[1] $etcdctl_cmd = '/opt/etcd/etcdctl',
  Pattern[/\A\/./] $etcdctl_prefix = '/puppet_trigger/events/hosts',
  Variant[String[1], Array[String[1], 1]] $run_cmd = 'puppet agent --test',
  Pattern[/\A\/./] $etcdwatch_pwd = '/usr/local/bin/etcdwatch',
  Variant[Hash[String[1], Any], Sensitive[Hash[String[1], Any]]] $etcd = { 'servers' => ['http://127.0.0.1:2379'] },
) {
  if $etcdctl_cmd != '/opt/etcd/etcdctl' {
    warning('trigger::watch::etcd: etcdctl_cmd is ignored; the agent talks to etcd itself (parameter etcd)')
  }
  if $etcdwatch_pwd != '/usr/local/bin/etcdwatch' {
    warning('trigger::watch::etcd: etcdwatch_pwd only says which old script to remove; none is installed')
  }
  unless $etcdctl_prefix =~ /.\/hosts\z/ {
    fail("trigger::watch::etcd: etcdctl_prefix must end in /hosts, as the keys of triggers do; it is ${etcdctl_prefix}")
  }

  exec { 'stop puppet-trigger\'s etcdwatch':
    command => '/etc/init.d/etcdwatch stop',
    onlyif  => '/usr/bin/test -x /etc/init.d/etcdwatch',
  }
  -> file { ['/etc/init.d/etcdwatch', $etcdwatch_pwd]:
    ensure => absent,
  }
  # lint:ignore:unquoted_node_name -- a parameter named node
  -> class { 'localpuppet::agent':
    node      => $trigger_hostname,
    keyprefix => regsubst($etcdctl_prefix, '/hosts\z', ''),
    run_cmd   => $run_cmd,
    bus       => 'etcd',
    buses     => { 'etcd' => $etcd },
  }
  # lint:endignore
}
