$stage_name = pick_stage($facts['hostname'], $region)
include works::base
Package { ensure => 'latest' }
