# What each node has.
class profile::base (
  String $motd,
  Array[String] $packages,
  Hash $limits,
  String $timezone = 'UTC',
) {
  file { "${facts['node_root']}/made":
    ensure => directory,
  }
  file {
    default:
      ensure => file,
      mode   => '0644',
      owner  => 'root';
    "${facts['node_root']}/made/motd":
      content => epp('profile/motd.epp', { 'motd' => $motd, 'zone' => $timezone });
    "${facts['node_root']}/made/facts":
      content => template('profile/facts.erb');
    "${facts['node_root']}/made/static":
      source => 'puppet:///modules/profile/static.txt';
  }
  $packages.sort.each |$package| {
    package { $package:
      ensure   => installed,
      noop     => true,
      provider => 'dpkg',
      tag      => ['base', $package],
    }
  }
  $limits.each |$name, $kinds| {
    $kinds.each |$kind, $value| {
      profile::limit { "${name}-${kind}":
        value => $value,
      }
    }
  }
  notify { "greeting ${title}":
    message => lookup('greeting'),
  }
  notify { 'names':
    message => "${facts['fqdn']} ${facts['hostname']} ${trusted['certname']} ${trusted['domain']} ${trusted['authenticated']} ${environment}",
  }
  notify { 'machine':
    message => "${osfamily} ${facts['os']['name']} ${operatingsystem} ${facts.get('site.rack', 'none')} ${clientcert}",
  }
  notify { 'classification':
    message => "${tier} ${getvar('zone')} ${role} ${facts['site_colour']}",
  }
  notify { 'functions':
    message => "${profile::double(2)} ${profile::joined($packages)} ${fqdn_rand(1000, 'seed')}",
  }
  @user { 'deploy':
    ensure => present,
    noop   => true,
  }
  File["${facts['node_root']}/made"] -> Notify['names'] ~> Notify['machine']
  Package <| tag == 'base' |> -> Notify['classification']
}
