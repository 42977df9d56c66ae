# @summary Installs the configuration and the systemd units of `localpuppet agent`, and starts it.
#
# The `localpuppet` command must be installed (a package, or pip). The configuration is a separate
# file beside `localpuppet.yaml`, which stays yours; a key must not be in both.
#
# The agent may run the very Puppet that applies this class, so this class starts, stops and
# restarts it without waiting: the agent lets that Puppet finish, and then stops. A stopping unit
# needs its file, which says how long Puppet may continue; systemd deletes the file when the unit
# has stopped.
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
# @param run_cmd The command for a trigger: words without a shell. Default: the supervisor of
#   `localpuppet apply`.
# @param run_interval The interval of runs without a trigger (`30m`, `1h`); `false` for never.
# @param keyprefix The prefix of triggers on the bus.
# @param bus The engine.
# @param buses Settings of the engines, as under `buses` of localpuppet.yaml.
# @param split Two services: an unprivileged one for the network, one as root that runs Puppet.
#   Requires `bus` `nats` or `etcd`.
# @param manage_config Whether Puppet manages the configuration file.
# @param config The path of the configuration file.
# @param group A group that may read the configuration. Default: with `split` the network side's.
# @param manage_user Whether to create user and group `localpuppet` for the network side of `split`.
# @param manage_service Whether the services are started and enabled.
# @param unit_directory The directory of systemd units.
# @param command The localpuppet executable: a path, or a name on the PATH.
class localpuppet::agent (
  Enum['running', 'stopped', 'absent'] $ensure = 'running',
  Optional[String[1]] $node = undef,
  Optional[Variant[String[1], Array[String[1], 1]]] $run_cmd = undef,
  Variant[Pattern[/\A[0-9][0-9.smhdw]*\z/], Boolean[false]] $run_interval = '30m',
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
  if $split and $manage_config and $bus == 'sqlite' and $ensure != 'absent' {
    fail("localpuppet::agent: split cannot use bus 'sqlite' (set bus to 'nats' or 'etcd')")
  }
  $one = ['localpuppet-agent.service']
  $two = ['localpuppet-agent-run.socket', 'localpuppet-agent-run.service', 'localpuppet-agent-net.service']
  # Select the units of one form; the others are removed.
  $wanted = $ensure ? {
    'absent' => [],
    default  => if $split { $two } else { $one },
  }
  $unwanted = ($one + $two) - $wanted

  # User and group stay when the form changes: they may own files.
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
          'agent' => { 'run_interval' => $run_interval, 'run_cmd' => $run_cmd, 'keyprefix' => $keyprefix },
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
      # After= delays this until the running stop has finished.
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
      # systemd refuses to restart a socket while its service runs, so the two go together.
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
        # The configuration does not affect the socket; while the socket stays, the network side
        # does.
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
