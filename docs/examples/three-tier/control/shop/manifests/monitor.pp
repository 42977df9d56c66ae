# Watches what the other nodes export.
class shop::monitor(String $directory) {
  file { "${directory}/monitor.conf": content => "# ${shop::release()}\n" }
  Shop::Watched <<| |>> { directory => $directory }
}
