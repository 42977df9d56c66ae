class httpd::params {
  case $facts['os']['family'] {
    'Debian': {
      $package = 'apache2'
      $file = '/etc/apache2/apache2.conf'
    }
    default: {
      $package = 'httpd'
      $file = '/etc/httpd/conf/httpd.conf'
    }
  }
}
