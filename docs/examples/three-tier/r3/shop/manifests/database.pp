# Stores what the shop sells; waits for a running backup.
class shop::database(String $directory) {
  exec { 'wait for the backup':
    command => "/bin/sh -c 'touch ${directory}/waits; while [ -e ${directory}/backup ]; do sleep 0.1; done'",
    onlyif  => "/usr/bin/test -e ${directory}/backup",
  }
  -> file { "${directory}/schema.sql": content => "-- ${shop::release()}\n" }
  application_component { 'Database[shop]':
    application => 'shop',
    produces    => 'sql/shop',
  }
  @@shop::watched { $trusted['certname']: port => 5432 }
}
