# The application servers; they need the database.
class shop::app(String $directory) {
  file { "${directory}/app.conf": content => "release = ${shop::release()}\n" }
  application_component { "App[${trusted['certname']}]":
    application => 'shop',
    consumes    => 'sql/shop',
    produces    => 'http/shop',
  }
  @@shop::watched { $trusted['certname']: port => 8080 }
}
