class profile::users (
  Hash[String, Hash] $users = {},
) {
  $users.each |$name, $user| {
    profile::account { $name: * => $user }
  }
}
