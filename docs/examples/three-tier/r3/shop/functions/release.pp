# What the configuration says of its release.
function shop::release() >> String {
  'r3'
}
