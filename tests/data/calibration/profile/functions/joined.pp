# Joins names.
function profile::joined(Array[String] $names) >> String {
  $names.sort.join('+')
}
