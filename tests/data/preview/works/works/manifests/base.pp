class works::base (
  Hash[String, Integer] $limits,
  String $zone = 'UTC',
  String $cluster = 'none',
) {
  file { '/etc/stage': content => "${stage_name} ${cluster}" }
  file { '/etc/timezone': content => $zone }
  works::limits { 'root': limits => $limits }
  $facts['mountpoints'].each |$path, $mount| {
    unless $mount['device'] =~ /^tmp/ {
      file { "/etc/mounts.d/${path.regsubst('/', '-', 'G')}": content => $mount['device'] }
    }
  }
  @file { '/etc/virtual': content => 'v' }
  if $facts['realize'] {
    realize(File['/etc/virtual'])
  }
}
