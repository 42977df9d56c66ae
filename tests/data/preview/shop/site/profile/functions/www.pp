function profile::www(String $name) >> String {
  "www.${name}"
}
