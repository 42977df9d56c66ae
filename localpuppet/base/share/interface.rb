# frozen_string_literal: true

# Prints as JSON what the modules in the directories before '--' offer, as Puppet's own parser reads
# them: errors, classes with their parameters, which modules may hold Hiera data, and what the code
# needs that not every node has. Behind '--' are directories and files with code outside of modules: of
# these only errors and needs. Nothing is evaluated.
require 'json'
require 'puppet'

# What Puppet itself loads from a module; examples, tests and Bolt's plans are none of its business.
LOADED = '{manifests,functions,types}/**/*.pp'
formatter = Puppet::Pops::Validation::DiagnosticFormatter.new

# A site's puppet.conf must not decide what a release offers: only what is an error anywhere is one.
Puppet.initialize_settings(%w[--confdir /nonexistent --vardir /nonexistent --strict off])

def source(node)
  node && node.locator.extract_tree_text(node).dup.force_encoding('UTF-8').scrub
end

def may_hold_data(directory)
  metadata = File.join(directory, 'metadata.json')
  %w[hiera.yaml data].any? { |name| File.exist?(File.join(directory, name)) } ||
    (File.file?(metadata) && File.binread(metadata).include?('"data_provider"'))
end

# The modules that Puppet's own packages bundle and Debian's package does not, with their types.
CORE = {
  'augeas_core' => %w[augeas], 'cron_core' => %w[cron], 'host_core' => %w[host],
  'macdslocal_core' => %w[computer macauthorization mcx], 'mount_core' => %w[mount],
  'scheduled_task' => %w[scheduled_task], 'selinux_core' => %w[selboolean selmodule],
  'sshkeys_core' => %w[ssh_authorized_key sshkey], 'yumrepo_core' => %w[yumrepo],
  'zfs_core' => %w[zfs zpool], 'zone_core' => %w[zone]
}.flat_map { |name, types| types.map { |type| [type, name] } }.to_h.freeze
QUERY = 'puppetdb_query'
# What a file with such a resource or call has in it.
NEEDS = /\b(?:#{CORE.keys.join('|')})\s*\{|\b#{QUERY}\b/.freeze

modules = {}
errors = []
classes = {}
needs = {}

# Returns whether Puppet itself, or a module in one of the directories, has a type.
def type?(name, directories)
  bundled = File.join(Puppet[:vendormoduledir].to_s, '*', 'lib')
  libraries = [*$LOAD_PATH, *Dir.glob([bundled, *directories.map { |path| File.join(path, '*', 'lib') }])]
  libraries.any? { |path| File.exist?(File.join(path, 'puppet', 'type', "#{name}.rb")) }
end

# Notes where the code of a file first needs something.
define_method(:note_needs) do |program, place|
  program._pcore_all_contents([]) do |node|
    used = case node
           when Puppet::Pops::Model::ResourceExpression then node.type_name
           when Puppet::Pops::Model::CallNamedFunctionExpression then node.functor_expr
           end
    next unless used.is_a?(Puppet::Pops::Model::QualifiedName)

    name = used.value.delete_prefix('::')
    need = { name: name, module: CORE.fetch(name, ''), place: place.merge(line: node.line) }
    needs[name] ||= need if CORE.key?(name) || name == QUERY
  end
end

# Returns the classes and functions that a file defines; what is wrong in it is added to the errors.
define_method(:read) do |path, place|
  parser = Puppet::Pops::Parser::EvaluatingParser.new
  program = parser.parser.parse_file(path).model
  parser.validate(program).errors.each do |found|
    line = found.source_pos && found.source_pos.line
    errors << place.merge(line: line, message: formatter.format_message(found))
  end
  note_needs(program, place) if NEEDS.match?(File.binread(path))
  program.definitions
rescue StandardError => e # a file that cannot be parsed, or not even be read
  message = e.respond_to?(:basic_message) ? e.basic_message : e.message
  line = e.respond_to?(:line) ? e.line : nil
  errors << place.merge(line: line, message: message.dup.force_encoding('UTF-8').scrub)
  []
end

separator = ARGV.index('--')
directories = ARGV.first(separator)
directories.each_with_index do |directory, index|
  Dir.children(directory).sort.grep(/\A[a-z][a-z0-9_]*\z/).each do |name|
    path = File.join(directory, name)
    next if modules.key?(name) || !File.directory?(path) # the first on the modulepath wins

    modules[name] = { data: may_hold_data(path) }
    Dir.glob(LOADED, base: path).sort.each do |relative|
      place = { directory: index, file: File.join(name, relative) }
      read(File.join(path, relative), place).grep(Puppet::Pops::Model::HostClassDefinition).each do |found|
        parameters = found.parameters.to_h do |parameter|
          value = parameter.value
          type = source(parameter.type_expr)
          [parameter.name, { type: type, required: value.nil?, default: source(value) }]
        end
        classes[found.name] ||= place.merge(line: found.line, parameters: parameters)
      end
    end
  end
end
ARGV.drop(separator + 1).each_with_index do |path, index|
  place = { directory: directories.size + index, file: '' }
  read(path, place) unless File.directory?(path)
  Dir.glob('**/*.pp', base: path).sort.each { |file| read(File.join(path, file), place.merge(file: file)) }
end

needs.reject! { |name, _| CORE.key?(name) && type?(name, directories) }
puts JSON.generate(
  puppet: Puppet.version, modules: modules, errors: errors, classes: classes, needs: needs.values
)
