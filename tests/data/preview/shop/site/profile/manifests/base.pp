class profile::base (
  Array[Profile::Package] $packages = [],
  String $editor = 'nano',
) {
  include profile::ntp
  include profile::users
  package { $packages: ensure => installed }
  file { '/etc/motd':
    content => epp('profile/motd.epp', { 'text' => lookup('motd'), 'banner' => lookup('banner') }),
  }
  file { '/etc/environment': content => "EDITOR=${editor}\n" }
  if $facts['is_virtual'] {
    notify { 'virtual': }
  }
}
