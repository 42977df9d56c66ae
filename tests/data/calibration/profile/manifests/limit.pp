# A limit.
define profile::limit (Profile::Amount $value) {
  host { "${title}.limits.example.com":
    ip   => '192.0.2.1',
    noop => true,
  }
  notify { "limit ${title}":
    message => String($value),
    require => Host["${title}.limits.example.com"],
  }
}
