# A limit.
define profile::limit (Profile::Amount $value) {
  group { "limits-${title}":
    ensure => present,
    noop   => true,
  }
  notify { "limit ${title}":
    message => String($value),
    require => Group["limits-${title}"],
  }
}
