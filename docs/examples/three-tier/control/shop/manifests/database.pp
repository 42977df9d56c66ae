# Stores what the shop sells.
class shop::database(String $directory) {
  file { "${directory}/schema.sql": content => "-- ${shop::release()}\n" }
  application_component { 'Database[shop]':
    application => 'shop',
    produces    => 'sql/shop',
  }
  @@shop::watched { $trusted['certname']: port => 5432 }
}
