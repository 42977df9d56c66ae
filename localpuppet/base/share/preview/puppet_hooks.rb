# frozen_string_literal: true

require_relative 'index_hooks'
require_relative 'machine_hooks'
require_relative 'memo'
require_relative 'variable_hooks'

module LocalpuppetPreview
  # Hooks of Puppet where Ruby's methods do not show what was read, or show too much.
  module PuppetHooks
    # What the hooks replace. If Puppet has another method, reads could be missed.
    METHODS = {
      'Puppet::Parser::Scope' => %i[to_hash lookupvar lookup_qualified_variable],
      'Puppet::Parser::Scope::LocalScope' => %i[[] include? bound? add_entries_to],
      'Puppet::Parser::Compiler' => %i[set_node_parameters qualified_variables],
      'Puppet::Parser::TemplateWrapper' => %i[result file=],
      'Puppet::Pops::Evaluator::EvaluatorImpl' => %i[eval_AccessExpression eval_CallMethodExpression],
      'Puppet::Pops::Evaluator::Collectors::ExportedCollector' => %i[evaluate],
      'Puppet::Pops::Loader::ModuleLoaders::FileBased' => IndexHooks::METHODS,
      'Puppet::Pops::Lookup::DataHashFunctionProvider' => %i[data_hash data_value],
      'Puppet::Pops::Lookup::HieraConfig' => %i[scope_interpolations_stable?],
      'Puppet::Pops::Lookup::Interpolation' => %i[interpolate_method],
      'Puppet::Pops::Parser::EvaluatingParser' => %i[parse_file parse_string],
      'Puppet::Module' => %i[read_metadata metadata_file],
      'Puppet::Node' => %i[facts parameters trusted_data]
    }.freeze
    SINGLETONS = {
      'Puppet::Type' => %i[type], 'Puppet::Util::Autoload' => %i[module_directories],
      'Puppet::Util' => %i[create_erb], 'Puppet::Pops::Time::Timestamp' => %i[now]
    }.freeze
    DATA = { 'yaml_data' => %w[.yaml .yml .eyaml], 'json_data' => %w[.json] }.freeze

    # Return a method that this Puppet lacks; `nil` if it has all.
    def self.unknown
      lacking(METHODS) { |owner, name| owner.method_defined?(name) || owner.private_method_defined?(name) } ||
        lacking(SINGLETONS) { |owner, name| owner.respond_to?(name, true) }
    end

    def self.lacking(table)
      table.each do |owner, names|
        constant = Object.const_get(owner)
        names.each { |name| return "#{owner}##{name}" unless yield(constant, name) }
      rescue NameError
        return owner
      end
      nil
    end

    def self.install
      FileHooks.install
      MachineHooks.install
      VariableHooks.install
      Memo.install
      Puppet::Type.singleton_class.prepend(Types)
      Puppet::Pops::Loader::ModuleLoaders::FileBased.prepend(IndexHooks)
      Puppet::Pops::Loader::BaseLoader.prepend(Answers)
      Puppet::Pops::Lookup::DataHashFunctionProvider.prepend(Data)
      Puppet::Parser::TemplateWrapper.prepend(Templates)
      Puppet::Pops::Time::Timestamp.singleton_class.prepend(Now)
      Puppet::Pops::Evaluator::Collectors::ExportedCollector.prepend(Collector)
      install_singletons
    end

    def self.install_singletons
      [Puppet::Pops::Types::TypeCalculator, Puppet::Pops::Types::TypeFormatter, Puppet::Pops::Types::TypeParser,
       Puppet::Pops::Parser::EvaluatingParser].each { |owner| owner.singleton_class.prepend(Singletons) }
    end

    # Puppet::Pops::Loader::BaseLoader: keeps what each loader answers to a name, also that it has none.
    # Puppet asks again and again, through all modules. An answer can change only if an entry with that
    # name is set; one of a type set may have any type.
    module Answers
      @known = Hash.new { |hash, kind| hash[kind] = {} }

      class << self
        def of(typed_name)
          @known[typed_name.type][typed_name] ||= {}.compare_by_identity
        end

        def forget(typed_name)
          typed_name.type == :type ? @known[:type] = {} : @known[typed_name.type].delete(typed_name)
        end
      end

      def load_typed(typed_name)
        return super unless Reads.on?

        known = Answers.of(typed_name)
        return known[self] if known.key?(self)

        entry = super
        known[self] = entry # lost if it was forgotten meanwhile
      end

      def set_entry(typed_name, *)
        Answers.forget(typed_name)
        super.tap { Answers.forget(typed_name) }
      end

      def remove_entry(typed_name)
        super.tap { Answers.forget(typed_name) }
      end
    end

    # Puppet::Concurrent::ThreadLocalSingleton: keeps its key, which Puppet makes thousands of times.
    module Singletons
      def singleton
        @singleton_key ||= :"#{name}.singleton"
        thread = Thread.current
        thread.thread_variable_get(@singleton_key) || super
      end
    end

    # Puppet's own types that the parent has loaded: where a new Puppet would look for others first.
    module Types
      class << self
        attr_accessor :loaded
      end
      self.loaded = {}

      def type(name)
        Types.note(name.to_s.downcase) if Reads.on?
        super
      end

      def self.note(name)
        return unless loaded.delete(name)

        environment = Puppet.lookup(:current_environment) { nil }
        Puppet::Util::Autoload.module_directories(environment).each do |directory|
          Reads.check(File.join(directory, 'puppet', 'type', "#{name}.rb"))
          Reads.list(File.join(directory, 'puppet', 'provider', name))
        end
      end
    end

    # Puppet::Pops::Lookup::DataHashFunctionProvider: counts the keys of a data file that are looked up.
    module Data
      private

      def data_value(invocation, location, root_key)
        Reads.key(path(location), root_key) if Reads.on? && keyed?(invocation, location)
        super
      end

      def data_hash(invocation, location)
        return super unless Reads.on? && keyed?(invocation, location)

        file = path(location)
        context = function_context(invocation, location)
        Reads.by_key(file) do
          context.data_hash ||= Memo.use('data', file)
          super.tap { |data| Reads.file(file) if data.empty? }
        end
      rescue StandardError
        Reads.file(path(location)) # the whole of it is wrong
        raise
      end

      # Puppet's own functions, which return the file's content; those of modules may do anything. localpuppet
      # takes a file for what its ending says.
      def keyed?(invocation, location)
        return false if location.nil? || !location.location.is_a?(Pathname)
        return false unless DATA.fetch(@function_name, []).include?(location.location.extname)

        own = function(invocation).method(@function_name).source_location&.first
        !own.nil? && Reads.name(File.expand_path(own)).nil?
      end

      def path(location)
        location.location.to_s
      end
    end

    # Puppet::Parser::TemplateWrapper: the file of the template that is compiled next.
    module Templates
      def result(string = nil)
        Memo::Erb.path = string ? nil : @__file__
        super
      ensure
        Memo::Erb.path = nil
      end
    end

    # Puppet::Pops::Time::Timestamp
    module Now
      def now
        Reads.impure('reads the time')
        super
      end
    end

    # Collects what the node's last good run got from other nodes; without such an answer, nothing.
    module Collector
      BASE = Puppet::Pops::Evaluator::Collectors::AbstractCollector.instance_method(:evaluate)

      def evaluate
        arguments = [@type, PuppetX::Localpuppet::Exports.send(:plain, @equery)]
        return BASE.bind_call(self) if Queries.known('collect', arguments)

        Reads.query('collect', arguments, nil)
        false
      end
    end

    # The answers of the node's last good run, for the query functions of localpuppet's own modules.
    module Queries
      class << self
        attr_accessor :answers
      end

      def self.known(function, arguments)
        wanted = JSON.generate(arguments)
        answers.find { |query| query['function'] == function && JSON.generate(query['arguments']) == wanted }
      end

      def self.answer(function, arguments)
        known = known(function, arguments)
        if known.nil?
          Reads.impure("has no answer to #{function}()")
          raise Puppet::Error, "#{function}(#{JSON.generate(arguments)[1..-2]}): the capture has no answer to this query " \
                               "(capture the node again after a run that asks it: 'localpuppet capture')"
        end
        Reads.query(function, known['arguments'], known['answer'])
        Marshal.load(Marshal.dump(known['answer']))
      end

      def ask(function, arguments)
        Queries.answer(function, arguments)
      end
    end

    # The agent, which a preview does not ask: the capture has its answers.
    module NoAgent
      def run; end

      def call(verb, fields, **)
        case verb
        when 'collect' then { 'resources' => Queries.answer(verb, fields.values_at('type', 'filter')) }
        when 'leader' then { 'holder' => Queries.answer(verb, fields.values_at('name', 'ttl')) }
        else raise Puppet::Error, "#{verb}: a preview asks no agent"
        end
      end
    end
  end
end
