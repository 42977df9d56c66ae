function works::ini(Hash $sections) >> String {
  $sections.map |$section, $values| {
    "[${section}]\n${works::lines($values)}"
  }.join("\n")
}
