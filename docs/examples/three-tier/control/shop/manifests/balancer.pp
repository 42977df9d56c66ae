# Balances over all nodes with the role app.
class shop::balancer(String $directory) {
  $servers = servers_with_role('app').map |$app| { "server ${app['fqdn']}:8080\n" }
  file { "${directory}/haproxy.cfg": content => "# ${shop::release()}\n${join($servers)}" }
  @@shop::watched { $trusted['certname']: port => 443 }
}
