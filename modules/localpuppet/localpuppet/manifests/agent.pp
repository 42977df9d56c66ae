# @summary Installs the configuration and the systemd units of `localpuppet agent`, and starts it.
#
# The `localpuppet` command itself must be there (a package, or pip). The configuration is a file of
# its own beside `localpuppet.yaml`, which stays yours; a key must not stand in both.
#
# The agent may be running the very Puppet that applies this class. It is therefore started, stopped and
# restarted without waiting: it lets that Puppet finish, and then goes. A unit that is still stopping
# needs its file, which says for how long Puppet may go on; systemd removes that when the unit is gone.
#
# @example A fleet on NATS
#   class { 'localpuppet::agent':
#     bus   => 'nats',
#     buses => {
#       'nats' => {
#         'servers'     => ['tls://nats1.example.com:4222'],
#         'ca'          => '/etc/puppet/bus/ca.pem',
#         'certificate' => '/etc/puppet/bus/node.pem',
#         'key'         => '/etc/puppet/bus/node.key',
#       },
#     },
#   }
#
# @example A site with a Puppet server
#   class { 'localpuppet::agent':
#     run_cmd => 'puppet agent --test',
#   }
#
# @param ensure `running`, `stopped` (installed, and not started at boot), or `absent`.
# @param node This node's name on the bus. Default: Puppet's certname.
# @param run_cmd What a trigger runs: words without a shell. Default: `localpuppet apply`'s supervisor.
# @param every How often it runs without a trigger (`30m`, `1h`); `false` for never.
# @param keyprefix Where on the bus triggers are.
# @param bus The engine.
# @param buses Settings of the engines, as under `buses` of localpuppet.yaml.
# @param split Two services: an unprivileged one for the network, one as root that runs Puppet.
# @param manage_config Whether the configuration file is ours.
# @param config Where it is.
# @param group A group that may read the configuration. Default: with `split` the network side's.
# @param manage_user Whether user and group `localpuppet` are made, which the network side of `split` has.
# @param manage_service Whether the services are started and enabled.
# @param unit_directory Where systemd finds units.
# @param command Where localpuppet is: a path, or a name that is on the PATH.
class localpuppet::agent (
  Enum['running', 'stopped', 'absent'] $ensure = 'running',
  Optional[String[1]] $node = undef,
  Optional[Variant[String[1], Array[String[1], 1]]] $run_cmd = undef,
  Variant[Pattern[/\A[0-9][0-9.smhdw]*\z/], Boolean[false]] $every = '30m',
  Optional[Pattern[/\A\/./]] $keyprefix = undef,
  Enum['sqlite', 'etcd', 'nats'] $bus = 'sqlite',
  Variant[Hash[String[1], Any], Sensitive[Hash[String[1], Any]]] $buses = {},
  Boolean $split = false,
  Boolean $manage_config = true,
  Pattern[/\A\/./] $config = '/etc/puppet/localpuppet-agent.yaml',
  Optional[String[1]] $group = undef,
  Boolean $manage_user = true,
  Boolean $manage_service = true,
  Pattern[/\A\/[\w.\/+-]+\z/] $unit_directory = '/etc/systemd/system',
  String[1] $command = 'localpuppet',
) {
  $one = ['localpuppet-agent.service']
  $two = ['localpuppet-agent-run.socket', 'localpuppet-agent-run.service', 'localpuppet-agent-net.service']
  # Of the two forms one is wanted.
  $wanted = $ensure ? {
    'absent' => [],
    default  => if $split { $two } else { $one },
  }
  $unwanted = ($one + $two) - $wanted

  # They stay when the form changes: files may be theirs.
  if $split and $manage_user and $ensure != 'absent' {
    group { 'localpuppet':
      ensure => present,
      system => true,
    }
    -> user { 'localpuppet':
      ensure => present,
      system => true,
      gid    => 'localpuppet',
      home   => '/nonexistent',
      shell  => '/usr/sbin/nologin',
    }
    if $manage_config {
      User['localpuppet'] -> File[$config]
    }
    if $manage_service {
      $wanted.each |$unit| { User['localpuppet'] -> Service[$unit] }
    }
  }

  if $manage_config {
    $present = $ensure ? {
      'absent' => 'absent',
      default  => 'file',
    }
    $reader = $group ? {
      undef   => if $split { 'localpuppet' },
      default => $group,
    }
    $mode = $reader ? {
      undef   => '0600',
      default => '0640',
    }
    $node_name = $node ? {
      undef   => undef,
      default => downcase($node),
    }
    file { $config:
      ensure    => $present,
      mode      => $mode,
      group     => $reader,
      show_diff => false,
      backup    => false,
      content   => localpuppet::document({
          'node'  => $node_name,
          'bus'   => $bus,
          'buses' => $buses,
          'agent' => { 'every' => $every, 'run_cmd' => $run_cmd, 'keyprefix' => $keyprefix },
      }),
    }
  }

  $wanted.each |$unit| {
    file { "${unit_directory}/${unit}":
      ensure  => file,
      mode    => '0644',
      content => Deferred('localpuppet::unit', [$unit, $command]),
    }
  }

  if $manage_service {
    $unwanted.each |$unit| {
      $file = "${unit_directory}/${unit}"
      # After= puts this behind the stop that is under way.
      $later = "systemd-run --no-block --collect --quiet --property=After=${unit}"
      service { $unit:
        ensure => stopped,
        enable => false,
        stop   => "systemctl --no-block stop ${unit}",
      }
      -> exec { "remove ${file}":
        command => "${later} '--property=ExecStopPost=/bin/systemctl daemon-reload' /bin/rm -f ${file}",
        onlyif  => "test -e ${file}",
        path    => ['/usr/bin', '/bin'],
      }
    }
    $wanted.each |$unit| {
      # systemd refuses to start a socket anew whose service runs, so the two go together.
      $together = $unit ? {
        'localpuppet-agent-run.socket' => "${unit} localpuppet-agent-run.service",
        default                        => $unit,
      }
      service { $unit:
        ensure    => $ensure,
        enable    => $ensure == 'running',
        start     => "systemctl --no-block start ${unit}",
        stop      => "systemctl --no-block stop ${together}",
        restart   => "systemctl --no-block try-restart ${together}",
        require   => $wanted.map |$other| { File["${unit_directory}/${other}"] },
        subscribe => File["${unit_directory}/${unit}"],
      }
      if $manage_config {
        # The socket has nothing of it; and while it stays, the network side does.
        if $unit =~ /service\z/ {
          File[$config] ~> Service[$unit]
        } else {
          File[$config] -> Service[$unit]
        }
      }
      if $ensure == 'running' {
        $unwanted.each |$other| { Service[$other] -> Service[$unit] }
      }
    }
  } else {
    $unwanted.each |$unit| {
      file { "${unit_directory}/${unit}":
        ensure => absent,
      }
    }
  }
}
