# frozen_string_literal: true

require_relative 'puppet_hooks'

module LocalpuppetPreview
  # Compiles a catalog of no release, so that Puppet's own types and functions are loaded already.
  module Warm
    CODE = <<~'PUPPET'
      class warm(String $text = lookup('warm', String, 'first', 'x'), Optional[Integer[1]] $number = undef) {
        $list = [1, 2, 3].map |$index, $item| { "${index} ${item}" }
        $hash = { 'a' => $text, 'b' => { 'c' => $facts['os'] } }
        if $text =~ /x/ and $list[0] != 'y' and defined(Class['warm']) { notice("${hash['b']}") }
        $chosen = $number ? { undef => 'none', default => $hash.dig('a') }
        case $chosen { /no/: { debug($chosen) } default: { fail('no') } }
        each($hash) |$key, $value| { warm::item { "item ${key}": content => inline_epp('<%= $x %>', { x => $key }) } }
        Warm::Item['item a'] -> Warm::Item['item b']
        $joined = $list.filter |$item| { $item =~ String }.reduce('') |$all, $item| { "${all}${item}" }
        create_resources('warm::item', { 'made' => { content => inline_template('<%= @text %>') } })
        ensure_types(versioncmp('1', '2'), regsubst($joined, '1', '2'), split('a,b', ','), sprintf('%s', 1))
      }
      function ensure_types(*$any) { $any.with |*$all| { $all.empty } }
      define warm::item(String $content, Enum['present', 'absent'] $ensure = 'present') {
        notify { "warm ${title}": message => $content, tag => ['one'], withpath => false }
      }
      include warm
    PUPPET
    # With Puppet's own types.
    RESOURCES = <<~'PUPPET'
      class warm::resources (
        Variant[Integer, Pattern[/x/], Enum['a']] $mode = 'a',
        Hash[String, Optional[Array[Struct[{ 'k' => Boolean }]]]] $settings = { 'x' => [{ 'k' => true }] },
      ) {
        File { owner => 'root', mode => '0644' }
        package { 'warm': ensure => installed }
        -> file { ['/warm', '/warm/a']: ensure => directory, require => Package['warm'], notify => Service['warm'] }
        ~> service { 'warm': ensure => running, enable => true, hasrestart => true }
        exec { 'warm': command => '/bin/true', refreshonly => true, subscribe => File['/warm'], unless => 'x' }
        @file { '/warm/b': content => inline_template("<%- [1].each do |x| -%>\n<%= x %> <%= @mode %>\n<%- end -%>\n") }
        realize File['/warm/b']
        File <| title == '/warm/a' |> { group => 'root' }
        user { 'warm': ensure => present } group { 'warm': ensure => present }
        $text = @("END")
          ${mode} ${settings['x'][0]['k']}
          | END
        notice($text, "${warm::text}", assert_type(String, 'x'), 'x' in ['x'], !true, 1 + 2 * 3, [1] + [2], { 'a' => 1 } + { 'b' => 2 })
      }
      class warm::child inherits warm::resources { Exec['warm'] { command => '/bin/false' } }
      include warm::child
      contain warm::resources
      Class['warm'] -> Class['warm::child']
    PUPPET
    TYPES = %w[component exec file filebucket group notify package resources schedule service stage tidy user whit].freeze

    def self.up(setup)
      Puppet.override(Puppet.base_context(Puppet.settings)) do
        environment = Puppet::Node::Environment.create(:warm, [], Puppet::Node::Environment::NO_MANIFEST)
        environments = Puppet::Environments::Static.new(environment)
        Puppet.override(environments: environments, current_environment: environment) { compile(environment, setup) }
      end
    ensure
      Puppet[:code] = ''
    end

    def self.compile(environment, setup)
      load_types(setup)
      return unless PuppetHooks::Types.loaded['notify']

      complete = TYPES.all? { |name| PuppetHooks::Types.loaded[name] }
      Puppet[:code] = complete ? CODE + RESOURCES : CODE
      facts = Puppet::Node::Facts.new('warm', 'clientcert' => 'warm', 'os' => { 'family' => 'Debian' })
      node = Puppet::Node.new('warm', classes: {}, parameters: {})
      node.environment = environment
      node.fact_merge(facts)
      node.trusted_data = Puppet::Context::TrustedInformation.local(node).to_h
      Puppet.override(loaders: Puppet::Pops::Loaders.new(environment, false, false)) do
        PuppetX::Localpuppet::Catalogs.described(Puppet::Parser::Compiler.compile(node))
      end
    end

    # Load Puppet's types, except those that a module of the release replaces or extends.
    def self.load_types(setup)
      libraries = setup['modulepath'].flat_map { |directory| Dir.glob(File.join(directory, '*', 'lib', 'puppet')) }
      TYPES.each do |name|
        replaced = libraries.any? { |path| File.exist?(File.join(path, 'type', "#{name}.rb")) || File.exist?(File.join(path, 'provider', name)) }
        PuppetHooks::Types.loaded[name] = true if !replaced && Puppet::Type.type(name.to_sym)
      end
    end
  end
end
