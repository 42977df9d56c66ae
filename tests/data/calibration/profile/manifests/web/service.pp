# The service of a web server.
class profile::web::service {
  service { 'nginx':
    ensure => running,
    enable => true,
    noop   => true,
  }
}
