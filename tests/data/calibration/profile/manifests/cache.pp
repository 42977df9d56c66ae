# A cache, which an ENC command includes.
class profile::cache {
  notify { "cache of ${role}": }
}
