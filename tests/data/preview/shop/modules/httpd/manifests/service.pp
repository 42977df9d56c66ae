class httpd::service {
  service { 'httpd':
    ensure    => running,
    subscribe => File[$httpd::params::file],
  }
}
