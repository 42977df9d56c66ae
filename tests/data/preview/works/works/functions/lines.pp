function works::lines(Hash $values) >> String {
  $values.map |$key, $value| { "${key}=${value}\n" }.join('')
}
