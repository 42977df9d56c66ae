# A database.
class profile::db (
  String $size,
  Sensitive[String] $hidden = Sensitive('hidden'),
  String $db_password = 'none',
  Hash $options = {},
) {
  file { "${facts['node_root']}/made/secret":
    content => $hidden,
  }
  file { "${facts['node_root']}/made/pgpass":
    content => "db:5432:${db_password}\n",
  }
  notify { "size ${size}":
    message => String($options, '%p'),
  }
}
