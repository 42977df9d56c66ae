node default {
  include profile::base
}
node /^web\d+/ {
  include role::web
}
node 'db1.example.com', 'db2.example.com' {
  include role::db
}
