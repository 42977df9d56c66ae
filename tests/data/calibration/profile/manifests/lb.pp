# A load balancer, which asks other nodes and collects from them.
class profile::lb {
  $webs = query_nodes('role=web')
  $facts_of = query_facts('role=web', ['datacenter'])
  notify { "webs ${webs.size}":
    message => join($webs.sort + $facts_of.map |$node, $values| { "${node}=${values['datacenter']}" }.sort, ' '),
  }
  notify { 'resources':
    message => String(puppetdb_query('inventory[certname] { facts.datacenter = "ber" }').map |$row| { $row['certname'] }.sort),
  }
  Notify <<| tag == 'web' |>>
}
