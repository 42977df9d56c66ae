class works::frontend (
  Integer $workers = 1,
  String $heading = 'none',
) {
  package { 'frontend': }
  file { '/etc/frontend.conf':
    content => inline_epp("workers <%= $workers %>\n", { 'workers' => $workers * 2 }),
  }
  if defined('works::extra') {
    include works::extra
  }
  create_resources('works::unit', { 'frontend' => { 'command' => "/usr/bin/frontend ${heading}" } })
}
