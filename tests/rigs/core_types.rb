# frozen_string_literal: true

# Prints the parameters of the types of the installed Puppet, and of modules in the directories that
# are named, as JSON.
require 'json'
require 'puppet'

ARGV.each { |path| $LOAD_PATH.unshift(File.join(File.expand_path(path), 'lib')) }
Puppet.initialize_settings
files = Dir.glob($LOAD_PATH.map { |path| File.join(path, 'puppet/type/*.rb') })
types = files.map { |file| Puppet::Type.type(File.basename(file, '.rb').to_sym) }.uniq
found = types.to_h { |type| [type.name.to_s.capitalize, (type.properties.map(&:name) + type.parameters).uniq.sort] }
puts JSON.pretty_generate(found.except('Component', 'Whit').sort.to_h)
