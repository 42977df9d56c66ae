class profile::web (
  Profile::Port $port,
  Array[String] $names,
) {
  class { 'httpd':
    port  => $port,
    names => $names + [profile::www($facts['networking']['fqdn'])],
  }
  file { '/srv/www':
    ensure  => directory,
    source  => 'puppet:///modules/profile/www',
    recurse => true,
  }
  $legacy = $facts['os']['release']['major'] ? {
    '11'    => true,
    default => false,
  }
  if $legacy {
    include profile::legacy
  }
}
