class site {
  class { 'apache': default_vhost => false }
  apache::vhost { 'first.example.com': port => 80, docroot => '/var/www/first' }
  class { 'mysql::client': bindings_enable => true }
  class { 'ntp': servers => ['ntp1.example.com', 'ntp2.example.com'] }
  class { 'haproxy': }
  haproxy::listen { 'web': ipaddress => '127.0.0.1', ports => '8080' }
}
