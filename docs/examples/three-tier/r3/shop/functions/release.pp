# Returns the name of the release, for configuration files.
function shop::release() >> String {
  'r3'
}
