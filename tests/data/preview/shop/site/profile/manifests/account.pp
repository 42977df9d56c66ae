define profile::account (
  Profile::Uid $uid,
  Array[String] $groups = [],
) {
  user { $name:
    ensure => present,
    uid    => $uid,
    groups => $groups,
  }
}
