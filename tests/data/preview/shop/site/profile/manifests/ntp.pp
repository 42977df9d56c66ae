class profile::ntp (
  Array[String] $servers,
  Integer $panic = 1000,
) {
  file { '/etc/ntp.conf':
    content => template('profile/ntp.conf.erb'),
    notify  => Service['ntp'],
  }
  service { 'ntp': ensure => running }
}
