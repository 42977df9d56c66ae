class profile::db (
  String $size,
  Hash $options = {},
) {
  volume { 'data':
    ensure => present,
    size   => profile_bytes($size),
  }
  file { '/etc/db.conf':
    content => epp('profile/db.conf.epp', { 'options' => $options }),
    require => Volume['data'],
  }
}
