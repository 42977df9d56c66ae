File {
  owner => 'root',
}
$company = lookup('company')
