# frozen_string_literal: true

require 'json'
require_relative 'agent'

module PuppetX
  module Localpuppet
    # The resources that a catalog exports and collects, for the termini of that name.
    #
    # The agent applies limits, policies and trust. This module has what only Ruby
    # can do: it decides which values of a catalog can be serialised, and adds a resource of another
    # node to a catalog.
    module Exports
      # Without an agent, the node first reads the whole inventory from the bus.
      PATIENCE = 60
      LIMIT = 128 * 1024 * 1024
      BINARY = Puppet::Pops::Types::PBinaryType::Binary
      FILE = 'exports.json'

      # Stores the exports of a catalog with its run. Without a run, it stores nothing: a command
      # that a person runs by hand publishes nothing.
      #
      # @param catalog [Puppet::Resource::Catalog]
      # @raise [Puppet::Error] one line: the first value that cannot be exported, or a refusal
      #   of the agent
      def self.offer(catalog)
        exported = catalog.resources.select(&:exported)
        return if exported.empty?

        listed = exported.map { |resource| described(resource) }
        return unless Agent.run

        path = File.join(Puppet[:publicdir], FILE)
        File.open(path, File::WRONLY | File::CREAT | File::TRUNC, 0o600) do |file|
          file.write(JSON.generate({ 'schema' => 1, 'resources' => listed }))
        end
        Agent.call('export', { 'run' => Agent.run }, patience: PATIENCE)
      rescue JSON::GeneratorError, SystemCallError => e
        raise Agent::Error, "the exported resources cannot be written down: #{Program.line(e.message)}"
      end

      # @param type [String] the type
      # @param filter [Array, nil] the condition, as Puppet's parser represents it
      # @param scope [Puppet::Parser::Scope] the collector's
      # @return [Array<Puppet::Parser::Resource>] other nodes' exports that this node accepts
      # @raise [Puppet::Error] one line
      def self.collect(type, filter, scope)
        found(type, plain(filter)).map do |raw|
          resource = entering(type, raw, scope)
          refuse_clash(resource, raw, scope)
          resource
        end
      end

      # A catalog evaluates its collectors repeatedly, until nothing changes: every evaluation must
      # get the same answer.
      def self.found(type, filter)
        @found ||= {}
        @found[[type, filter]] ||= begin
          question = { 'type' => type, 'filter' => filter, 'run' => Agent.run }
          answer = Agent.call('collect', question, patience: PATIENCE, limit: LIMIT)
          Array(answer['warnings']).each { |text| Puppet.warning("#{type} <<| |>>: #{Program.line(text)}") }
          resources = answer.fetch('resources') do
            raise Agent::Error, "#{type} <<| |>>: the agent's answer holds no resources"
          end
          called_by_title(type, resources)
        end
      end
      private_class_method :found

      # A policy restricts titles. A resource that it accepts guarded must therefore not have
      # another name than its title: a parameter that names the resource is dropped if it is the
      # type's only one. If a type has several (sshkey: the type), they are plain values.
      def self.called_by_title(type, resources)
        names = Puppet::Type.type(type)&.key_attributes
        return resources unless names&.one?

        name = names.first.to_s
        resources.each do |raw|
          next unless raw['how'] == 'guarded' && raw['parameters'].fetch(name, raw['title']) != raw['title']

          raw['parameters'].delete(name)
          Puppet.warning("#{type}[#{raw['title']}] of #{raw['node']}: its #{name} does not count")
        end
      end
      private_class_method :called_by_title

      def self.entering(type, raw, scope)
        parameters = raw['parameters'].map do |name, value|
          Puppet::Parser::Resource::Param.new(name: name.to_sym, value: revived(value), source: scope.source)
        end
        resource = Puppet::Parser::Resource.new(type, raw['title'],
                                                scope: scope, source: scope.source, parameters: parameters,
                                                exported: true, file: raw['file'], line: raw['line'])
        resource.collector_id = "#{raw['node']}|#{type}|#{raw['title']}"
        resource
      end
      private_class_method :entering

      # Puppet detects a clash, too, but does not name the exporting node.
      def self.refuse_clash(resource, raw, scope)
        other = scope.findresource(resource.resource_type, resource.title)
        return if other.nil? || other.collector_id == resource.collector_id

        holder = other.collector_id ? "exported by #{other.collector_id.split('|', 2).first}" : 'declared here'
        raise Puppet::ParseError,
              "#{resource.ref} is exported by #{raw['node']}#{place(raw['file'], raw['line'])} and #{holder}" \
              "#{place(other.file, other.line)} (give each a unique title, for example with the node's name)"
      end
      private_class_method :refuse_clash

      def self.place(file, line)
        file ? " (#{[file, line].compact.join(':')})" : ''
      end
      private_class_method :place

      def self.described(resource)
        secret = resource.sensitive_parameters.first
        raise refusal(resource, secret, 'is Sensitive: it would cross the bus, and stand on every node') if secret

        sealed = defined?(Sealed) && { title: resource.title.to_s, **resource.to_hash }.find { |_, value| Sealed.in?(value) }
        raise refusal(resource, sealed.first, 'has a sealed value: it would cross the bus') if sealed

        parameters = {}
        names = [:name, *resource.key_attributes]
        resource.each do |name, value|
          # Puppet adds a name that only repeats the title.
          next if names.include?(name) && value == resource.title

          parameters[name.to_s] = written(resource, name, value)
        end
        {
          'type' => resource.type, 'title' => resource.title.to_s, 'tags' => resource.tags.to_a,
          'file' => resource.file, 'line' => resource.line,
          'parameters' => parameters
        }
      end
      private_class_method :described

      # Returns the JSON form of a value of a catalog.
      def self.written(resource, name, value)
        case value
        when nil, :undef, true, false, Integer, Float then (value == :undef) ? nil : value
        when String then text(resource, name, value)
        when Symbol then value.to_s
        when Array then value.map { |item| written(resource, name, item) }
        when Hash then mapping(resource, name, value)
        when Puppet::Resource then value.ref
        when BINARY then { '__ptype' => 'Binary', '__pvalue' => value.to_s }
        when Puppet::Pops::Types::PSensitiveType::Sensitive
          raise refusal(resource, name, 'is Sensitive: it would cross the bus, and stand on every node')
        else
          kind = Puppet::Pops::Types::TypeCalculator.infer(value).simple_name
          raise refusal(resource, name, "is a #{kind}: only data can be exported")
        end
      end
      private_class_method :written

      def self.text(resource, name, value)
        utf8 = value.encode(Encoding::UTF_8)
        return utf8 if utf8.valid_encoding?

        raise refusal(resource, name, 'is not UTF-8: export it as a Binary')
      rescue EncodingError
        raise refusal(resource, name, 'is not UTF-8: export it as a Binary')
      end
      private_class_method :text

      def self.mapping(resource, name, value)
        odd = value.keys.find { |key| !key.is_a?(String) || key.start_with?('__p') }
        raise refusal(resource, name, 'has a key that cannot be exported: keys are strings') if odd

        value.transform_values { |item| written(resource, name, item) }
      end
      private_class_method :mapping

      def self.refusal(resource, name, why)
        at = place(resource.file, resource.line)
        Puppet::Error.new("#{Program.line(resource.ref)} cannot be exported#{at}: its #{name} #{why}")
      end
      private_class_method :refusal

      def self.revived(value)
        case value
        when Array then value.map { |item| revived(item) }
        when Hash
          return BINARY.from_base64(value['__pvalue']) if value['__ptype'] == 'Binary'

          value.transform_values { |item| revived(item) }
        else value
        end
      end
      private_class_method :revived

      # Returns the JSON form of a condition: a reference to a resource becomes its text.
      def self.plain(filter)
        case filter
        when Array then filter.map { |item| plain(item) }
        when Hash then filter.to_h { |key, item| [plain(key), plain(item)] }
        when Puppet::Resource then filter.ref
        when :undef then nil
        when Symbol then filter.to_s
        when nil, String, Integer, Float, true, false then filter
        else raise Puppet::Error, "a collector compares with a #{filter.class}, which nobody exports"
        end
      end
      private_class_method :plain
    end
  end
end
