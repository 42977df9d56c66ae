# frozen_string_literal: true

require_relative 'reads'

module LocalpuppetPreview
  # Facter answers for the node, from its capture: it resolves no fact and runs no program of this machine.
  # What the capture lacks is nil, and a failure names it.
  module FacterHooks
    class << self
      attr_reader :facts

      # `legacy`: older name => path and value of a fact; see localpuppet/node/enc/instance/fact_names.py
      def start(facts, legacy)
        @facts = Marshal.load(Marshal.dump(facts))
        @legacy = legacy
        @lacking = []
      end

      # Return what a failure says of the facts and programs that code asked for in vain.
      def lacking
        names = @lacking.to_a.uniq.first(10).join(', ')
        names.empty? ? '' : " (the capture lacks what code asked Facter for: #{names}; capture the node again if it has it)"
      end

      def answer(method, query)
        case method
        when :value, :core_value then value(query)
        when :fact, :[] then value(query).then { |value| Facter::ResolvedFact.new(query.to_s.downcase, value) unless value.nil? }
        when :version then value('facterversion')
        else
          note([])
          method == :list ? @facts.keys.sort : @facts.dup
        end
      end

      # Return the value of a fact by any name that Facter knows: `os`, `os.family`, `osfamily`; `nil` for none.
      def value(query)
        name = query.to_s.downcase
        paths = [[name], name.split('.')].uniq
        path = paths.find { |steps| !dig(steps).nil? }
        path, value = path ? [path, dig(path)] : @legacy[name]
        [[name], path || []].each { |steps| note(steps) }
        path ? value : lack(name)
      end

      # Return what Facter returns if it does not find a program.
      def no_program(command, on_fail)
        lack(program = command.to_s[/\S+/].to_s)
        on_fail == :raise ? raise(Facter::Core::Execution::ExecutionFailure, "a preview runs no program: '#{program}'") : on_fail
      end

      private

      # What Puppet's own types ask while they are loaded does not count.
      def note(path)
        Reads.fact('facts', path) unless Reads.type_loading?
      end

      def lack(name)
        @lacking << name unless Reads.type_loading?
        nil
      end

      def dig(path)
        path.reduce(@facts) do |tree, step|
          tree.is_a?(Hash) ? tree[step] : (tree[Integer(step, 10, exception: false) || tree.size] if tree.is_a?(Array))
        end
      end
    end

    # Facter
    module Answers
      %i[value core_value fact [] to_hash list each resolve version].each do |name|
        define_method(name) do |query = nil, &block|
          return super(*query, &block) unless FacterHooks.facts

          answer = FacterHooks.answer(name, query)
          name == :each ? answer.each(&block) && self : answer
        end
      end
    end

    # Facter::FactManager, which resolves facts for all other methods of Facter
    module Manager
      def resolve_facts(query = [])
        return super unless FacterHooks.facts

        all = FacterHooks.answer(:list, nil) if query.empty?
        (all || query).map { |name| Facter::ResolvedFact.new(name.to_s, FacterHooks.value(name), :core, all ? '' : name.to_s) }
      end

      def resolve_fact(query)
        FacterHooks.facts ? resolve_facts([query]) : super
      end

      def resolve_core(query = [], options = {})
        FacterHooks.facts ? resolve_facts([*query]) : super
      end
    end

    # Facter::Resolvers: what reads the machine
    module NoResolvers
      def resolve(name, *)
        FacterHooks.facts ? FacterHooks.value("#{self.name}.#{name}") : super
      end
    end

    # Facter::Util::Fact: what code of the release defines, the node has resolved.
    module Defined
      def value
        FacterHooks.facts ? FacterHooks.value(name) : super
      end
    end

    # What runs the programs of Facter::Core::Execution
    module NoPrograms
      %i[which expand_command execute execute_command].each do |name|
        define_method(name) do |command, *options|
          return super(command, *options) unless FacterHooks.facts

          FacterHooks.no_program(command, name == :execute ? (options.first || {}).fetch(:on_fail, :raise) : options.first)
        end
      end
    end

    def self.install
      Facter.singleton_class.prepend(Answers)
      Facter::FactManager.prepend(Manager)
      Facter::Resolvers::BaseResolver.singleton_class.prepend(NoResolvers)
      Facter::Util::Fact.prepend(Defined)
      Facter::Core::Execution.impl.class.prepend(NoPrograms)
    end
  end
end
