define works::limits (
  Works::Limitset $limits,
) {
  file { "/etc/security/limits.d/${name}.conf":
    content => template('works/limits.erb', 'works/footer.erb'),
  }
}
