# frozen_string_literal: true

require_relative 'reads'

module LocalpuppetPreview
  # Records facts, trusted facts and other top-scope variables.
  #
  # The top scope's table of variables records each look-up; of `facts` and `trusted`, it counts all.
  # Where the code says which ones it uses (`$facts['os']['family']`, `%{facts.os.family}`,
  # `@facts['os']['family']`), only that path counts.
  module VariableHooks
    TREES = %w[facts trusted].freeze
    # A template that may use variables without naming them.
    OPAQUE = /
      \b(?:binding|eval|instance_eval|instance_exec|instance_variables?|instance_variable_\w+|to_hash|method_missing
         |ObjectSpace|TOPLEVEL_BINDING)\b
      | \bself\b(?!\.class\b) | (?<![.\w])(?:inspect|send|public_send|__send__|method)\b
    /x.freeze
    VARIABLE = /@([a-zA-Z_]\w*)((?:\[\s*(?:'[^'\\#]*'|"[^"\\#]*")\s*\])*)/.freeze
    # What is between the marks of ERB.
    CODE = /<%(?!%)((?:%%>|(?!%>).)*)%>/m.freeze
    private_constant :OPAQUE, :VARIABLE, :CODE

    class << self
      # Count a path, and pass over the next look-up of its root.
      def precisely(kind, path)
        before = @pending
        @pending = kind
        Reads.fact(kind, path)
        yield
      ensure
        @pending = before
      end

      def pending?(kind)
        @pending == kind
      end

      def looked_up(name)
        return unless Reads.on?
        return Reads.parameter(name) unless TREES.include?(name)
        return if @muted

        if @pending == name
          @pending = nil
        else
          Reads.fact(name, [])
        end
      end

      def everything
        Reads.everything unless @muted
      end

      # Run a block whose use of facts was counted before.
      def muted
        before = @muted
        @muted = true
        yield
      ensure
        @muted = before
      end

      attr_accessor :template

      # Return the names of the variables that a template may use; `nil` for all.
      def template_read(source)
        code = source.scan(CODE).join("\n")
        return Reads.everything if code.match?(OPAQUE)

        code.scan(VARIABLE).to_set do |name, keys|
          count_in_template(name, keys)
          name
        end
      end

      def count_in_template(name, keys)
        return Reads.parameter(name) unless TREES.include?(name)

        Reads.fact(name, keys.scan(/\[\s*(?:'([^']*)'|"([^"]*)")\s*\]/).map { |one, other| one || other })
      end

      # Return the kind and the literal keys of `$facts['os']['family']`; `nil` for another expression.
      def chain(node)
        keys = []
        while node.is_a?(Puppet::Pops::Model::AccessExpression)
          keys.unshift(node.keys)
          node = node.left_expr
        end
        kind = root(node)
        kind && [kind, literal(keys)]
      end

      def root(node)
        return unless node.is_a?(Puppet::Pops::Model::VariableExpression)

        name = node.expr.is_a?(Puppet::Pops::Model::QualifiedName) ? node.expr.value.delete_prefix('::') : nil
        name if TREES.include?(name)
      end

      # Return the texts of keys, up to the first that is something else.
      def literal(keys)
        keys.take_while { |several| several.size == 1 && text?(several.first) }.map { |several| several.first.value }
      end

      def text?(node)
        node.is_a?(Puppet::Pops::Model::LiteralString) || node.is_a?(Puppet::Pops::Model::QualifiedName)
      end
    end

    # The table of the top scope.
    module Table
      def [](name)
        VariableHooks.looked_up(name)
        super
      end

      def include?(name)
        VariableHooks.looked_up(name)
        super
      end

      def bound?(name)
        VariableHooks.looked_up(name)
        super
      end

      def add_entries_to(target = {}, include_undef = false)
        VariableHooks.everything
        super
      end
    end

    # The table of names with `::`, which has the variables of the top scope without it.
    module QualifiedTable
      def [](name)
        VariableHooks.looked_up(name) unless name.include?('::')
        super
      end

      def include?(name)
        VariableHooks.looked_up(name) unless name.include?('::')
        super
      end

      %i[each each_pair to_h to_a keys values fetch key? dig select].each do |name|
        define_method(name) do |*arguments, &block|
          VariableHooks.everything
          super(*arguments, &block)
        end
      end
    end

    # Puppet::Parser::Compiler: from now on, the top scope records.
    module TopScope
      private

      def set_node_parameters
        super
        @topscope.instance_variable_get(:@symtable).extend(Table)
        @qualified_variables.extend(QualifiedTable)
      end
    end

    # Puppet::Pops::Evaluator::EvaluatorImpl
    module Access
      def eval_AccessExpression(node, scope) # rubocop:disable Naming/MethodName
        kind, path = VariableHooks.chain(node)
        return super if kind.nil? || path.empty? || VariableHooks.pending?(kind)

        VariableHooks.precisely(kind, path) { super }
      end

      # `$facts.dig('os', 'family')`, `$facts.get('os.family')`
      def eval_CallMethodExpression(node, scope) # rubocop:disable Naming/MethodName
        path = method_path(node)
        path ? VariableHooks.precisely(VariableHooks.root(node.functor_expr.left_expr), path) { super } : super
      end

      private

      def method_path(node)
        access = node.functor_expr
        return unless access.is_a?(Puppet::Pops::Model::NamedAccessExpression) && VariableHooks.root(access.left_expr)
        return unless node.lambda.nil? && access.right_expr.is_a?(Puppet::Pops::Model::QualifiedName)

        arguments = node.arguments || []
        return unless arguments.first.is_a?(Puppet::Pops::Model::LiteralString)

        case access.right_expr.value
        when 'dig' then VariableHooks.literal(arguments.map { |argument| [argument] })
        when 'get' then dotted(arguments.first.value)
        end
      end

      def dotted(text)
        text.split('.') if text.match?(/\A[a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)*\z/)
      end
    end

    # Puppet::Pops::Lookup::Interpolation: `%{facts.os.family}`
    module Interpolation
      private

      def interpolate_method(method_key)
        original = super
        return original unless method_key == :scope

        lambda do |key, invocation, subject|
          root, *path = key.delete_prefix('::').split('.')
          plain = key.match?(/\A(?:::)?\w+(?:\.[a-zA-Z_]\w*)+\z/) && TREES.include?(root)
          plain ? VariableHooks.precisely(root, path) { original.call(key, invocation, subject) } : original.call(key, invocation, subject)
        end
      end
    end

    # Puppet::Pops::Lookup::HieraConfig: looks again whether variables that it used have changed.
    module Stable
      def scope_interpolations_stable?(invocation)
        VariableHooks.muted { super }
      end
    end

    # Puppet::Parser::TemplateWrapper: copies every variable, of which the template uses some.
    module Template
      def result(string = nil)
        source = string || Reads.pause { Puppet::FileSystem.read_preserve_line_endings(@__file__) }
        VariableHooks.template = [VariableHooks.template_read(source)] if Reads.on?
        super
      ensure
        VariableHooks.template = nil
      end
    end

    # Puppet::Parser::Scope
    module Copies
      def to_hash(*)
        return super unless VariableHooks.template

        names, = VariableHooks.template
        VariableHooks.template = nil
        values = VariableHooks.muted { super }
        names ? values.select { |name, _| named?(name, names) } : values
      end

      private

      # A template knows a variable with other characters by another name.
      def named?(name, names)
        return true if names.include?(name)
        return false unless name.match?(/\W/) && names.include?(name.gsub(/\W/, '_'))

        Reads.parameter(name)
        true
      end
    end

    # Ruby that reads the node instead of variables.
    module NodeAccess
      %i[facts parameters trusted_data server_facts merge fact_merge to_data_hash to_json to_pson names].each do |name|
        define_method(name) do |*arguments, &block|
          Reads.everything if Reads.from_release?
          super(*arguments, &block)
        end
      end
    end

    def self.install
      Puppet::Parser::Compiler.prepend(TopScope)
      Puppet::Pops::Evaluator::EvaluatorImpl.prepend(Access)
      Puppet::Pops::Lookup::HieraConfig.prepend(Stable)
      Puppet::Parser::TemplateWrapper.prepend(Template)
      Puppet::Parser::Scope.prepend(Copies)
      Puppet::Node.prepend(NodeAccess)
      Puppet::Pops::Lookup::Interpolation.prepend(Interpolation)
    end
  end
end
