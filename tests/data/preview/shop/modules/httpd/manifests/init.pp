class httpd (
  Integer $port,
  Array[String] $names,
  String $package = $httpd::params::package,
  Boolean $status = true,
) inherits httpd::params {
  package { $package: ensure => installed }
  file { $httpd::params::file:
    content => template('httpd/httpd.conf.erb'),
    require => Package[$package],
  }
  $names.each |$index, $name| {
    httpd::vhost { $name: priority => $index }
  }
  contain httpd::service
}
