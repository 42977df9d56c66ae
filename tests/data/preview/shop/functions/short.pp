function short(String $name) >> String {
  $name.split('[.]')[0]
}
