# A file of the fragments that all nodes export for it.
define app::concat(String $path) {
  file { $path: content => 'see its fragments' }
  App::Fragment <<| target == $title or tag == "app_${title}" |>> -> File[$path]
}
