# @summary Does nothing. It exists so that manifests that include it compile.
#
# In puppet-trigger 0.1.2, this class installed a package and ran a service, both named "trigger",
# which were never released. The type `trigger` needs no class; the receiving side is
# `localpuppet::agent`.
#
# @param package_name Ignored.
# @param service_name Ignored.
class trigger (
  Optional[String] $package_name = undef,
  Optional[String] $service_name = undef,
) {
  if $package_name or $service_name {
    warning('class trigger: package_name and service_name are ignored; there is no such package or service')
  }
}
