# @summary Installs one etcd server for triggers: puppet-trigger's class, with Debian's packages.
#
# puppet-trigger downloaded etcd 0.4 without a checksum and opened it to the network without TLS. This class
# installs the packages `etcd-server` and `etcd-client`. Without `tls` the server listens on 127.0.0.1 alone.
#
# @example One member of three
#   class { 'trigger::install::etcd':
#     peers     => ['etcd1=https://10.0.0.1:2380', 'etcd2=https://10.0.0.2:2380', 'etcd3=https://10.0.0.3:2380'],
#     etcd_name => 'etcd1',
#     tls       => { 'certificate' => '/etc/etcd/node.pem', 'key' => '/etc/etcd/node.key', 'ca' => '/etc/etcd/ca.pem' },
#   }
#
# @param hosts Ignored, with a warning.
# @param version Ignored, with a warning: the distribution decides.
# @param target Ignored, with a warning: the packages decide.
# @param config_hash Ignored, with a warning.
# @param discovery_url The discovery service by which the members find each other; needs `tls`.
# @param peers All members, as `NAME=URL`; needs `tls`.
# @param etcd_name The name of this member.
# @param etcd_ip The address of this member for clients and members, if there is `tls`.
# @param data_dir Where etcd keeps its data; etcd's user must be able to write there.
# @param tls Files of a certificate, its key, and the CA that signs those of clients and members.
# @param config The file with the environment of the service.
class trigger::install::etcd (
  Array $hosts = [],
  Optional[String] $version = undef,
  Optional[String] $target = undef,
  Hash $config_hash = {},
  Optional[Pattern[/\Ahttps?:\/\/\S+\z/]] $discovery_url = undef,
  Array[Pattern[/\A[^\s=]+=https:\/\/[^\s,]+\z/]] $peers = [],
  Pattern[/\A[^\s=,]+\z/] $etcd_name = $facts['networking']['fqdn'],
  Pattern[/\A[0-9a-fA-F.:]+\z/] $etcd_ip = $facts['networking']['ip'],
  Pattern[/\A\/\S+\z/] $data_dir = '/var/lib/etcd/default',
  Optional[Struct[{ certificate => Pattern[/\A\/\S+\z/], key => Pattern[/\A\/\S+\z/], ca => Pattern[/\A\/\S+\z/] }]] $tls = undef,
  Pattern[/\A\/./] $config = '/etc/default/etcd',
) {
  if $hosts + $config_hash.keys != [] or $version or $target {
    warning('trigger::install::etcd: hosts, version, target and config_hash are ignored; Debian\'s packages are installed')
  }
  if $tls {
    $address = $etcd_ip ? { /:/ => "[${etcd_ip}]", default => $etcd_ip }
    $own = ["https://${address}:2379", "https://${address}:2380"]
    $files = {
      'CERT_FILE'        => $tls['certificate'],
      'KEY_FILE'         => $tls['key'],
      'TRUSTED_CA_FILE'  => $tls['ca'],
      'CLIENT_CERT_AUTH' => 'true',
    }
    $secured = $files + $files.reduce({}) |$found, $pair| { $found + { "PEER_${pair[0]}" => $pair[1] } }
  } else {
    if $discovery_url or $peers != [] {
      fail('trigger::install::etcd: several members need tls')
    }
    $own = ['http://127.0.0.1:2379', 'http://127.0.0.1:2380']
    $secured = {}
  }
  if $discovery_url {
    $members = { 'DISCOVERY' => $discovery_url }
  } else {
    $all = $peers ? { [] => ["${etcd_name}=${own[1]}"], default => $peers }
    $members = { 'INITIAL_CLUSTER' => $all.join(',') }
  }
  $environment = {
    'NAME'                        => $etcd_name,
    'DATA_DIR'                    => $data_dir,
    'LISTEN_CLIENT_URLS'          => $own[0],
    'ADVERTISE_CLIENT_URLS'       => $own[0],
    'LISTEN_PEER_URLS'            => $own[1],
    'INITIAL_ADVERTISE_PEER_URLS' => $own[1],
  } + $members + $secured

  # The file first: the package starts the service.
  file { $config:
    ensure  => file,
    owner   => 'root',
    group   => 'root',
    mode    => '0644',
    content => "# Puppet writes this file.\n${$environment.map |$name, $value| { "ETCD_${name}=${value}\n" }.join}",
  }
  -> package { ['etcd-server', 'etcd-client']:
    ensure => installed,
  }
  -> service { 'etcd':
    ensure    => running,
    enable    => true,
    subscribe => File[$config],
  }
}
