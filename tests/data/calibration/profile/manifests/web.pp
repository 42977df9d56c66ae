# A web server.
class profile::web (
  Hash[String, Hash] $sites,
  Integer $workers = Integer($facts['processors']['count']) * 2,
) {
  contain profile::web::service
  realize(User['deploy'])
  create_resources('profile::site', $sites, { 'port' => 80 })
  @@notify { "web ${trusted['certname']}":
    message => "balance ${facts['datacenter']}",
    tag     => 'web',
  }
  notify { "workers ${workers}": }
}
