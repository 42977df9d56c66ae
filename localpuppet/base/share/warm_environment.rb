# frozen_string_literal: true

require 'json'
require 'set'
require_relative 'compiled_ruby'

# The code of an immutable release, read before a run needs it (docs/adr/0061-warm-environments.md).
#
# A run that ends well leaves the names of what it read (`Names`). An environment server, a child of
# the fork server, reads those files in advance (`Environment`) and forks the children of later runs
# of the same release:
#
#   Puppet's own types, providers, features, termini    loaded, as Puppet's autoloader does
#   Ruby code of modules                                compiled, and not executed
#   manifests, data types and EPP templates             parsed and validated, and not evaluated
#
# No facts, settings of a node, data or catalogs enter the environment server.
module LocalpuppetWarmEnvironment
  SCHEMA = 1
  # Maximum names in the file, and its maximum bytes.
  NAMES = 20_000
  BYTES = 8 * 1024 * 1024
  # Settings that decide how Puppet parses and validates; the environment server has the run's.
  SETTINGS = %i[strict tasks storeconfigs].freeze
  # Directories from which Puppet loads code of a module by name.
  CODE = '{lib,functions,types,manifests}'
  # Puppet's own Ruby code that a run loads by its name: all except functions, which each
  # environment has for itself.
  OWN = %r{\Apuppet/(?!parser/functions/|functions/).*\.rb\z}
  AUTOLOADED = %r{\Apuppet/(?:type/\w+|provider/\w+/\w+|feature/\w+|indirector/\w+/\w+)\z}
  PARSERS = Puppet::Pops::Parser
  PROVIDER = %r{\Apuppet/provider/(\w+)/(\w+)\z}

  # Raised if the code cannot be read in advance; runs then read it themselves.
  class Unsuitable < StandardError; end

  # Return the roots of a run: what decides which files are the release's.
  def self.roots(request)
    argv = request.fetch('argv')
    option = ->(name) { (index = argv.index(name)) ? argv[index + 1] : '' }
    { 'modulepath' => option['--modulepath'].split(':'), 'libdir' => request.fetch('libdir'),
      'environment' => File.join(option['--environmentpath'], option['--environment']) }
  end

  # The names of what a run reads. It writes them at its end, unless the file has them.
  class Names
    # Return the content of the file; `nil` without a usable one.
    def self.read(path)
      File.open(path, File::RDONLY | File::NOFOLLOW) do |file|
        return unless file.stat.file? && file.stat.owned? && file.stat.size <= BYTES

        names = JSON.parse(file.read)
        names if names['schema'] == SCHEMA
      end
    rescue SystemCallError, JSON::ParserError
      nil
    end

    def initialize(path, key, roots)
      @path = path
      @names = { 'schema' => SCHEMA, 'key' => key, 'roots' => roots, 'ruby' => [], 'manifests' => [] }
    end

    def ruby(path)
      @names['ruby'] << path
    end

    # `how`: the parser's class, its method, and the file
    def manifest(how)
      @names['manifests'] << how
    end

    # Write the names at the end of this process if the run succeeded.
    def at_end
      process = Process.pid
      at_exit { write if Process.pid == process && $!.is_a?(SystemExit) && [0, 2].include?($!.status) }
    end

    private

    def write
      @names['settings'] = LocalpuppetWarmEnvironment.settings
      loaded = $LOADED_FEATURES.to_set
      @names['ruby'].select! { |path| loaded.include?(path) || path.include?('/lib/facter/') }
      before = Names.read(@path)
      same = before && %w[key roots settings].all? { |part| before[part] == @names[part] }
      %w[ruby manifests].each do |part|
        @names[part] = (same ? before[part] | @names[part] : @names[part].uniq).first(NAMES)
      end
      return if before == @names

      temporary = "#{@path}.#{Process.pid}"
      File.write(temporary, JSON.generate(@names), mode: File::WRONLY | File::CREAT | File::EXCL, perm: 0o600)
      File.rename(temporary, @path)
    rescue SystemCallError
      nil # for example: a full disk; the next run tries again
    end
  end

  # Code in the memory of the environment server, which its children share.
  class Environment
    attr_reader :key

    # `own`: the directories of Puppet's and Facter's library
    def initialize(names, own)
      @key = names.fetch('key')
      @roots = names.fetch('roots')
      @settings = names.fetch('settings')
      @own = own.map { |root| "#{root}/" }
      @libraries = [*Dir.glob(@roots['modulepath'].map { |path| "#{path}/*/lib" }), @roots['libdir']]
      @compiled = {}
      @parsed = {}
      @again = []
      @read = []
    end

    # Read the files of the names.
    def read(names)
      directories = [*@roots['modulepath'], @roots['environment'], @roots['libdir']]
      inner = directories.flat_map { |path| Dir.glob(["#{path}/*/", "#{path}/*/#{CODE}/**/", "#{path}/#{CODE}/**/"]) }
      @read.concat(directories, inner)
      stamps = LocalpuppetWarmEnvironment.stamps(@read)
      own, other = names.fetch('ruby').partition { |path| path.start_with?(*@own) }
      load_own(own.map { |path| path.delete_prefix(@own.find { |root| path.start_with?(root) }) })
      other.select { |path| path.start_with?(*@libraries.map { |library| "#{library}/" }) }
           .each { |path| compile(path) }
      parse(names.fetch('manifests'))
      @stamps = stamps + LocalpuppetWarmEnvironment.stamps(@read.drop(stamps.size))
    end

    # Return whether a file or a directory has changed since.
    def changed?
      LocalpuppetWarmEnvironment.stamps(@read) != @stamps
    end

    # Return whether this environment is that of a run.
    def serves?(request)
      LocalpuppetWarmEnvironment.roots(request) == @roots
    end

    # Return a file's compiled form, once: Ruby keeps state in it.
    def compiled(path)
      @compiled.delete(path)
    end

    # Return the model of a manifest; `nil` if the run has another text, or other settings.
    def parsed(how, text = nil)
      model, parsed_text = @parsed[how]
      model if model && parsed_text == text && LocalpuppetWarmEnvironment.settings == @settings
    end

    # Load what depends on facts or settings again, in a run that has them. Ruby would warn that the
    # constants of these files exist.
    def refresh
      verbose, $VERBOSE = $VERBOSE, nil
      Puppet.features.instance_variable_get(:@results).keep_if { |_, present| present }
      environment = Puppet.lookup(:current_environment)
      @again.each do |name|
        providers = Puppet::Type.type(name[PROVIDER, 1].to_sym).provider_hash
        order = providers.keys
        Puppet::Util::Autoload.load_file(name, environment)
        providers.replace(order.to_h { |provider| [provider, providers[provider]] }.compact.merge(providers))
      end
    ensure
      $VERBOSE = verbose
    end

    private

    # Load Puppet's own code by its names, unless a module has a file of the same name, or providers
    # for the type.
    def load_own(files)
      extended = Dir.glob(@libraries.map { |library| "#{library}/puppet/provider/*/*.rb" })
                    .map { |path| path[%r{/provider/(\w+)/[^/]+\z}, 1] }
      without_run do
        files.grep(OWN).each do |file|
          type = file[%r{\Apuppet/(?:provider|type)/(\w+)(?:/|\.rb\z)}, 1]
          next if extended.include?(type) || @libraries.any? { |library| File.exist?("#{library}/#{file}") }

          load_file(file.delete_suffix('.rb'))
        end
      end
    end

    def load_file(name)
      return require(name) unless name.match?(AUTOLOADED)

      type = name[%r{\Apuppet/(?:type|provider)/(\w+)}, 1]
      Puppet::Type.type(type.to_sym) if type
      return if name.start_with?('puppet/type/') || Puppet::Util::Autoload.loaded?(name)

      Puppet::Util::Autoload.load_file(name, Puppet.lookup(:current_environment))
    end

    # Execute a block without the machine's facts, and note each provider that requires facts or
    # settings while Ruby loads it.
    def without_run(&block)
      services = Puppet.runtime.instance_variable_get(:@runtime_services)
      before = services.dup
      facts = Object.new
      facts.define_singleton_method(:value, &method(:fact))
      services[:facter] = facts
      reads = TracePoint.new(:call) do |call|
        setting = call.binding.local_variable_get(call.parameters.first.last)
        note(setting) unless setting.to_sym == :always_retry_plugins
      end
      reads.enable(target: Puppet::Settings.instance_method(:value), &block)
    ensure
      services&.replace(before)
    end

    # Return a fact for the body of a provider, which the run loads again.
    def fact(name)
      note(name)
      ''
    end

    def note(what)
      reader = caller_locations.find { |location| location.path.start_with?(*@own) && name_of(location).match?(PROVIDER) }
      raise Unsuitable, "Puppet's library requires #{what} while Ruby loads it" unless reader

      @again |= [name_of(reader)]
    end

    def name_of(location)
      root = @own.find { |directory| location.path.start_with?(directory) }
      location.path.delete_prefix(root.to_s).delete_suffix('.rb')
    end

    def compile(path)
      @compiled[path] = RubyVM::InstructionSequence.compile_file(path)
      @read << path
    rescue SyntaxError, SystemCallError
      nil # the run reports it
    end

    # Parse and validate manifests with the settings of runs. A run reads a file itself if there is
    # anything to report about it.
    def parse(manifests)
      name, path = @roots.values_at('environment', 'modulepath')
      environment = Puppet::Node::Environment.create(File.basename(name).to_sym, path)
      @settings.each { |setting, value| Puppet[setting.to_sym] = value.is_a?(String) ? value.to_sym : value }
      counting_messages do |messages|
        Puppet.override({ current_environment: environment }) do
          manifests.each { |how| parse_one(how, messages) }
        end
      end
      Puppet.settings.clear
    end

    def parse_one(how, messages)
      parser, method, file = how
      @read << file
      before = messages.call
      parser = [PARSERS::EvaluatingParser, PARSERS::EvaluatingParser::EvaluatingEppParser].find { |one| one.name == parser }.new
      text = Puppet::FileSystem.read(file, encoding: 'utf-8') if method == 'parse_string'
      model = text ? parser.parse_string(text, file) : parser.parse_file(file)
      @parsed[how] = [model, text] if messages.call == before
    rescue StandardError
      nil # the run reports it
    end

    # Call a block with a function that returns how many messages Puppet would have logged.
    def counting_messages
      log = Puppet::Util::Log.method(:create)
      messages = 0
      Puppet::Util::Log.define_singleton_method(:create) { |*| messages += 1 }
      yield -> { messages }
    ensure
      Puppet::Util::Log.define_singleton_method(:create, log)
    end
  end

  # Return the run's settings that decide how Puppet parses.
  def self.settings
    SETTINGS.to_h { |name| [name.to_s, Puppet[name].is_a?(Symbol) ? Puppet[name].to_s : Puppet[name]] }
  end

  def self.stamps(paths)
    paths.map do |path|
      LocalpuppetCompiledRuby.stamp(File.stat(path))
    rescue SystemCallError
      nil
    end
  end

  # Make this process, a run, use an environment, if any, and record names, if any.
  def self.enter(environment, names)
    loading = Module.new do
      define_method(:load_iseq) do |path|
        names.ruby(path)
        # feature_index.rb comes first: it has Ruby append a file that it must not load.
        (super(path) if defined?(super)) || environment&.compiled(path)
      end
    end
    RubyVM::InstructionSequence.singleton_class.prepend(loading)
    parsing = Module.new do
      define_method(:parse_file) do |file|
        names.manifest(how = [self.class.name, 'parse_file', file])
        environment&.parsed(how)&.tap { clear } || super(file)
      end
      define_method(:parse_string) do |text, file = nil|
        next super(text, file) unless file.to_s.start_with?('/') # code of a setting, or of another text

        names.manifest(how = [self.class.name, 'parse_string', file.to_s])
        environment&.parsed(how, text)&.tap { clear } || super(text, file)
      end
    end
    PARSERS::EvaluatingParser.prepend(parsing)
    names.at_end
    return unless environment

    Puppet::Application::Apply.prepend(Module.new { define_method(:setup) { environment.refresh; super() } })
  end
end
