class profile::legacy {
  file { '/etc/legacy': content => file('profile/legacy.txt') }
}
