# A service that the monitor watches.
define shop::watched(Integer $port, Optional[String] $directory = undef) {
  file { "${directory}/${title}.watch": content => "${title}:${port}\n" }
}
