# A machine of a cloud.
class profile::cloud {
  notify { "cloud ${facts['instance_id']} ${facts['role']}":
    message => "${facts['cluster']}",
  }
}
