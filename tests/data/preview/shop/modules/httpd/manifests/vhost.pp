define httpd::vhost (
  Integer $priority,
) {
  file { "/etc/vhosts/${priority}-${name}":
    content => epp('httpd/vhost.epp', { 'name' => $name }),
  }
}
