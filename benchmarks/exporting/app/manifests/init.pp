# What three nodes export and collect, for puppetdb_exports.py: everything that a collector can ask
# and everything that an exported resource can be, once. $directory is where files may be written.
class app(String $me, String $directory) {
  $list = ['one', 'Two']
  $turned = ['Two', 'one']
  app::keep_catalog()
  include app::conditions

  notify { 'before': }
  notify { 'after': }

  # Texts, references, relationships to what every catalog has, overrides in the block.
  @@notify { "${me} text":
    message => "Grüße ☃ 😀 \"${me}\"\nline two",
    require => Notify['before'],
    tag     => ['text', "of-${me}"],
  }
  Notify <<| tag == 'text' |>> { withpath => false }

  # Files with a mode, a binary, an alias; in a chain.
  @@file { "${directory}/${me}.txt":
    ensure  => file,
    mode    => '0640',
    content => "of ${me}\n",
    alias   => "the file of ${me}",
    tag     => 'chained',
  }
  @@file { "${directory}/${me}.bin":
    ensure  => file,
    content => Binary('AP8KDQ=='),
    tag     => 'chained',
  }
  Notify['before'] -> File <<| tag == 'chained' |>> ~> Notify['after']

  # Values of every kind, a resource default of the exporter and one of the collector.
  App::Value { noop => false }
  @@app::value { "${me} values":
    whole    => 9007199254740993,
    fraction => 1.5,
    truth    => false,
    nothing  => undef,
    list     => [1, 'two', [3.0, undef]],
    mapping  => { 'a' => { 'b' => [true] }, 'c' => '' },
    refers   => Notify['before'],
    refers2  => [File["${directory}/${me}.txt"]],
  }
  App::Value <<| |>>

  # Fragments that all nodes give to one file.
  @@app::fragment { "all from ${me}":
    target  => 'all',
    order   => 10,
    content => "line of ${me}",
    tag     => 'app_all',
  }
  app::concat { 'all': path => "${directory}/all" }

  # Virtual and exported together; what the node exports itself.
  @notify { 'virtual': tag => 'virtual' }
  @notify { 'never realized': tag => 'never' }
  @@notify { "${me} realized": }
  @@notify { "${me} not asked for": }
  realize(Notify['virtual'], Notify["${me} realized"])
  @@notify { "${me} both": tag => 'both' }
  Notify <| tag == 'both' |>
  Notify <<| tag == 'both' |>> { loglevel => 'notice' }
}
