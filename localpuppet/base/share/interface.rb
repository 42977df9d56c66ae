# frozen_string_literal: true

# Prints as JSON the interface of the modules in the directories before '--', as Puppet's parser
# reads it: problems, classes with their parameters, which modules may have Hiera data, and what the
# code uses that neither they, Puppet nor localpuppet's modules (the first argument) define. After
# '--' are directories and files with code outside of modules, and a hiera.yaml: only their problems
# and uses are printed. No code is evaluated.
require 'json'
require 'puppet'
require 'set'

# The files that Puppet loads from a module, without examples, tests and Bolt's plans.
LOADED = '{manifests,functions,types}/**/*.pp'
formatter = Puppet::Pops::Validation::DiagnosticFormatter.new

# The site's puppet.conf must not affect the result: only what is an error anywhere is an error.
Puppet.initialize_settings(%w[--confdir /nonexistent --vardir /nonexistent --strict off])

def source(node)
  node && node.locator.extract_tree_text(node).dup.force_encoding('UTF-8').scrub
end

def may_hold_data(directory)
  metadata = File.join(directory, 'metadata.json')
  %w[hiera.yaml data].any? { |name| File.exist?(File.join(directory, name)) } ||
    (File.file?(metadata) && File.binread(metadata).include?('"data_provider"'))
end

# The modules in Puppet's own packages that Debian's package lacks, with their types.
CORE = {
  'augeas_core' => %w[augeas], 'cron_core' => %w[cron], 'host_core' => %w[host],
  'macdslocal_core' => %w[computer macauthorization mcx], 'mount_core' => %w[mount],
  'scheduled_task' => %w[scheduled_task], 'selinux_core' => %w[selboolean selmodule],
  'sshkeys_core' => %w[ssh_authorized_key sshkey], 'yumrepo_core' => %w[yumrepo],
  'zfs_core' => %w[zfs zpool], 'zone_core' => %w[zone]
}.flat_map { |name, types| types.map { |type| [type, "puppetlabs/#{name}"] } }.to_h.freeze
QUERY = 'puppetdb_query'
MODEL = Puppet::Pops::Model
# The functions that a hiera.yaml calls.
BACKEND = /^[^#\n]*?\b(?:data_hash|lookup_key|data_dig):\s*["']?([\w:]+)/.freeze
# Where Puppet finds Ruby of a kind in a library.
RUBY = {
  'class' => [], 'type' => %w[puppet/type], 'function' => %w[puppet/functions puppet/parser/functions],
  'data type' => %w[puppet/datatypes]
}.freeze

modules = {}
problems = []
classes = {}
definitions = Set.new
needs = {}

# Returns the names that are written out in titles or arguments.
def literals(nodes)
  flat = nodes.flat_map { |node| node.is_a?(MODEL::LiteralList) ? node.values : [node] }
  (flat.grep(MODEL::LiteralString) + flat.grep(MODEL::QualifiedName)).map(&:value)
end

# Returns what an expression uses by name: pairs of a name and a kind.
def used(node)
  case node
  when MODEL::ResourceExpression
    type = literals([node.type_name])
    type == ['class'] ? literals(node.bodies.map(&:title)).product(['class']) : type.product(['type'])
  when MODEL::CallNamedFunctionExpression
    function = literals([node.functor_expr])
    declared = (function & %w[include contain require]).empty? ? [] : literals(node.arguments)
    function.product(['function']) + declared.product(['class'])
  when MODEL::HostClassDefinition then [*node.parent_class].product(['class'])
  when MODEL::QualifiedReference
    node.cased_value.include?('::') ? [[node.cased_value, 'data type']] : []
  else []
  end
end

# Returns the names of a kind that Ruby in libraries defines.
def ruby_names(kind, libraries)
  places = libraries.product(RUBY.fetch(kind)).map { |parts| File.join(*parts) }
  files = places.flat_map { |place| Dir.glob('**/*.rb', base: place) }
  files.to_set { |file| file.delete_suffix('.rb').gsub('/', '::') }
end

# Notes where a module, or code outside of modules, first uses a name.
define_method(:note_use) do |name, kind, place|
  name = name.delete_prefix('::')
  kind = 'query' if name == QUERY
  needs[[kind, name, place[:directory], place[:file][%r{\A[^/]+/}]]] ||=
    { kind: kind, name: name, module: kind == 'type' ? CORE.fetch(name, '') : '', place: place }
end

# Returns the classes and functions that a file defines; what is wrong in it is added to the problems.
define_method(:read_code) do |path, place|
  parser = Puppet::Pops::Parser::EvaluatingParser.new
  program = parser.parser.parse_file(path).model
  parser.validate(program).errors.each do |found|
    line = found.source_pos && found.source_pos.line
    problems << { place: place.merge(line: line), message: formatter.format_message(found) }
  end
  program.definitions.each { |found| definitions << found.name.downcase if found.respond_to?(:name) }
  program._pcore_all_contents([]) do |node|
    used(node).each { |name, kind| note_use(name, kind, place.merge(line: node.line)) }
  end
  program.definitions
rescue StandardError => e # a file that cannot be parsed or read
  message = e.respond_to?(:basic_message) ? e.basic_message : e.message
  line = e.respond_to?(:line) ? e.line : nil
  problems << { place: place.merge(line: line), message: message.dup.force_encoding('UTF-8').scrub }
  []
end

separator = ARGV.index('--')
own, *directories = ARGV.first(separator)
Dir.glob(File.join(own, '*', LOADED)).each { |path| read_code(path, { file: '' }) }
needs.clear # only what localpuppet's modules define counts
directories.each_with_index do |directory, index|
  Dir.children(directory).sort.grep(/\A[a-z][a-z0-9_]*\z/).each do |name|
    path = File.join(directory, name)
    next if modules.key?(name) || !File.directory?(path) # the first on the modulepath wins

    modules[name] = may_hold_data(path)
    Dir.glob(LOADED, base: path).sort.each do |relative|
      place = { directory: index, file: File.join(name, relative) }
      read_code(File.join(path, relative), place).grep(MODEL::HostClassDefinition).each do |found|
        parameters = found.parameters.to_h do |parameter|
          value = parameter.value
          type = source(parameter.type_expr)
          [parameter.name, { type: type, required: value.nil?, default: source(value) }]
        end
        classes[found.name] ||= { place: place.merge(line: found.line), parameters: parameters }
      end
    end
  end
end
ARGV.drop(separator + 1).each_with_index do |path, index|
  place = { directory: directories.size + index, file: '' }
  config = path.end_with?('/hiera.yaml') && File.file?(path) ? File.binread(path) : ''
  config.scan(BACKEND) { |name,| note_use(name, 'function', place.merge(line: nil)) }
  read_code(path, place) if config.empty? && File.file?(path)
  Dir.glob('**/*.pp', base: path).sort.each { |file| read_code(File.join(path, file), place.merge(file: file)) }
end

bundled = File.join(Puppet[:vendormoduledir].to_s, '*', 'lib')
libraries = Dir.glob([bundled, *[own, *directories].map { |path| File.join(path, '*', 'lib') }])
libraries += [*$LOAD_PATH, *ARGV.drop(separator + 1)]
known = RUBY.keys.to_h { |kind| [kind, definitions + ruby_names(kind, libraries)] }
needs.reject! { |(kind, name), _| known.fetch(kind, []).include?(name.downcase) }
implementation = Puppet.respond_to?(:implementation) ? Puppet.implementation : 'puppet'
puts JSON.generate(
  schema: 4, puppet: Puppet.version, implementation: implementation,
  modules: modules, problems: problems, classes: classes, needs: needs.values
)
