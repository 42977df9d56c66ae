# A site.
define profile::site (Integer $port, Array[String] $aliases = []) {
  file { "${facts['node_root']}/made/${title}.conf":
    content => epp('profile/site.epp', { 'port' => $port, 'names' => [$title] + $aliases }),
    notify  => Service['nginx'],
  }
}
