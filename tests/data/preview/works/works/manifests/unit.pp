define works::unit (
  String $command,
) {
  file { "/etc/systemd/system/${name}.service":
    content => works::ini({ 'Service' => { 'ExecStart' => $command } }),
    notify  => Exec["reload ${name}"],
  }
  exec { "reload ${name}":
    command     => '/bin/systemctl daemon-reload',
    refreshonly => true,
  }
}
