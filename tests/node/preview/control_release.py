"""A small control repository with everything that a compile may read."""

_HIERA = """\
version: 5
defaults: {datadir: data, data_hash: yaml_data}
hierarchy:
  - {name: node, path: 'nodes/%{trusted.certname}.yaml'}
  - {name: os, path: 'os/%{facts.os.family}.yaml'}
  - {name: glob, glob: 'extra/*.yaml'}
  - {name: mapped, mapped_paths: [roles, role, 'role/%{role}.yaml']}
  - {name: json, path: common.json, data_hash: json_data}
  - {name: own, lookup_key: 'backend::keys', path: own.txt}
  - {name: common, path: common.yaml}
"""
_COMMON = """\
lookup_options:
  web::port: {convert_to: Integer}
  web::list: {merge: unique}
web::port: '80'
web::list: [a]
web::greeting: "hello %{facts.os.name} from %{lookup('web::place')}"
web::place: here
unused: 1
"""
_WEB = """\
class web (Integer $port, Array $list, String $greeting, Web::Name $name1 = 'x') {
  include web::inner
  require web::needed
  $v = web::calculated($port)
  $w = web::ruby('x')
  $three = web_three('y')
  notify { "w ${v} ${w} ${three} ${greeting}": }
  file { '/a': content => template('web/a.erb') }
  file { '/b': content => epp('web/b.epp', { port => $port }) }
  file { '/c': content => file('web/c.txt') }
  file { '/d': content => inline_template('<%= @osfamily %>') }
  web_thing { 'one': size => 1 }
  create_resources('web::made', { 'm' => { size => 2 } })
  if defined('web::optional') { include web::optional }
  if defined(Class['web::absent']) { fail('no') }
  $file = find_file('web/absent.txt')
  $json = lookup('from_json', String)
  $own = lookup('from_own', String)
  $extra = lookup('from_extra', Optional[String], 'first', undef)
  notify { "data ${json} ${own} ${extra}": }
}
"""
FILES = {
    "hiera.yaml": _HIERA,
    "data/common.yaml": _COMMON,
    "data/common.json": '{"from_json": "j"}',
    "data/os/Debian.yaml": "web::list: [b]\n",
    "data/extra/one.yaml": "from_extra: e\n",
    "data/own.txt": "from_own=o\n",
    "site.pp": "node /^web/ { } node default { }\n",
    "functions/here.pp": "function here() { 1 }\n",
    "modules/web/manifests/init.pp": _WEB,
    "modules/web/manifests/inner.pp": "class web::inner { $x = $trusted['certname'] }\n",
    "modules/web/manifests/needed.pp": "class web::needed { notify { $::osfamily: } }\n",
    "modules/web/manifests/made.pp": "define web::made(Integer $size) { notify { $title: } }\n",
    "modules/web/functions/calculated.pp": (
        "function web::calculated(Integer $a) >> Integer { $a + 1 }\n"
    ),
    "modules/web/types/name.pp": "type Web::Name = Web::Inner::Name\n",
    "modules/web/types/inner/name.pp": "type Web::Inner::Name = String[1]\n",
    "modules/web/lib/puppet/functions/web/ruby.rb": (
        "require_relative '../../../puppet_x/web/helper'\n"
        "Puppet::Functions.create_function(:'web::ruby') do\n"
        "  dispatch(:ruby) { param 'String', :a }\n"
        "  def ruby(text) PuppetX::Web::Helper.call(text) end\n"
        "end\n"
    ),
    "modules/web/lib/puppet_x/web/helper.rb": (
        "require_relative 'deeper'\n"
        "module PuppetX; module Web; module Helper\n"
        '  def self.call(text) "#{text}#{PuppetX::Web::DEEP}" end\n'
        "end; end; end\n"
    ),
    "modules/web/lib/puppet_x/web/deeper.rb": "module PuppetX; module Web; DEEP = 'd'; end; end\n",
    "modules/web/lib/puppet/parser/functions/web_three.rb": (
        "module Puppet::Parser::Functions\n"
        "  newfunction(:web_three, type: :rvalue) { |args| args[0] + lookupvar('::osfamily') }\n"
        "end\n"
    ),
    "modules/web/lib/puppet/type/web_thing.rb": (
        "Puppet::Type.newtype(:web_thing) do\n"
        "  newparam(:name, namevar: true)\n"
        "  newparam(:size)\n"
        "end\n"
    ),
    "modules/web/lib/puppet/provider/web_thing/one.rb": (
        "Puppet::Type.type(:web_thing).provide(:one) { }\n"
    ),
    "modules/web/templates/a.erb": (
        "<%= @port %> <%= @facts['os']['name'] %> <%= scope['::osfamily'] %>"
        "<%= scope.function_template(['web/part.erb']) %>\n"
    ),
    "modules/web/templates/part.erb": "part <%= @title %>\n",
    "modules/web/templates/b.epp": "<%- | Integer $port | -%>\n<%= $port %>\n",
    "modules/web/files/c.txt": "c\n",
    "modules/backend/lib/puppet/functions/backend/keys.rb": (
        "Puppet::Functions.create_function(:'backend::keys') do\n"
        "  dispatch :keys do\n"
        "    param 'String', :key\n"
        "    param 'Hash', :options\n"
        "    param 'Puppet::LookupContext', :context\n"
        "  end\n"
        "  def keys(key, options, context)\n"
        "    text = context.cached_file_data(options['path'])\n"
        "    found = text.lines.map { |line| line.chomp.split('=') }.to_h\n"
        "    found.fetch(key) { context.not_found }\n"
        "  end\n"
        "end\n"
    ),
}
