# frozen_string_literal: true

require 'json'
require 'openssl'
require_relative 'agent'

module PuppetX
  module Localpuppet
    # Records the catalog of a run in the run's directory, without values that may be secret.
    #
    # The form is Puppet's own of a catalog (references as text), with two more keys of a resource:
    # `aliases` and `virtual`. `localpuppet.node.puppet.catalog` makes it canonical.
    #
    # A Sensitive value, a parameter that Puppet marks as sensitive, a Deferred call and every value
    # of a type that is not listed here become a placeholder with the name of the type. So the
    # arguments of a Deferred call, which may be a secret, are never written. A preview compares
    # catalogs: with its key, a placeholder has a keyed digest of what it hides.
    module Catalogs
      FILE = 'catalog.json'
      MARK_DIGITS = 32
      # Types whose text has only the value itself.
      SHOWN = [Puppet::Pops::Types::PBinaryType::Binary, Puppet::Pops::Time::TimeData,
               Puppet::Pops::Types::PAnyType, SemanticPuppet::Version, SemanticPuppet::VersionRange, URI].freeze

      # A run by hand is not recorded. A failure ends no run: its catalog is then unknown.
      #
      # @param catalog [Puppet::Resource::Catalog]
      def self.keep(catalog)
        return unless Agent.run

        path = File.join(Puppet[:publicdir], FILE)
        File.open(path, File::WRONLY | File::CREAT | File::TRUNC, 0o600) do |file|
          text = JSON.generate(described(catalog))
          file.write(defined?(Sealed) ? Sealed.masked(text) : text)
        end
      rescue JSON::GeneratorError, SystemCallError => e
        Puppet.warning("the catalog of this run is not recorded: #{Program.line(e.message)}")
      end

      # @param key [String, nil] key of the marks of placeholders; nil for placeholders without marks
      # @return [Hash] the catalog as data
      def self.described(catalog, key = nil)
        {
          'name' => catalog.name, 'version' => catalog.version.to_s, 'environment' => catalog.environment.to_s,
          'classes' => catalog.classes,
          'resources' => catalog.resources.map { |resource| described_resource(resource, key) },
          'edges' => catalog.edges.map { |edge| { 'source' => edge.source.ref, 'target' => edge.target.ref } }
        }
      end

      def self.described_resource(resource, key)
        secret = resource.sensitive_parameters
        named = resource.send(:namevar)
        parameters = {}
        resource.each do |name, value|
          # Puppet adds a name that only repeats the title.
          next if name == named && value == resource.title

          parameters[name.to_s] = secret.include?(name) ? hidden('Sensitive', value, key) : data(value, key)
        end
        {
          'type' => resource.type, 'title' => resource.title.to_s, 'tags' => resource.tags.to_a,
          'file' => resource.file, 'line' => resource.line, 'exported' => resource.exported ? true : false,
          'virtual' => resource.virtual ? true : false,
          'aliases' => aliases(resource, secret), 'parameters' => parameters
        }
      end
      private_class_method :described_resource

      # The other names of a resource: relationships may use them. Puppet resolves only the name of a
      # type with one name, and only if two resources may not share it (`exec`).
      def self.aliases(resource, secret)
        keys = resource.key_attributes
        return [] if keys.length != 1

        names = secret.include?(:alias) ? [] : [resource[:alias]].flatten.grep(String)
        type = resource.resource_type
        return names if secret.include?(keys.first) || (type.respond_to?(:isomorphic?) && !type.isomorphic?)

        name = resource.to_hash[keys.first]
        names << name if name.is_a?(String) && name != resource.title
        names.uniq
      end
      private_class_method :aliases

      def self.data(value, key = nil)
        case value
        when String then text(value, key)
        when :undef then nil
        when nil, true, false, Integer, Float then value
        when Symbol then value.to_s
        when Array then value.map { |item| data(item, key) }
        when Hash then members(value, key)
        when Puppet::Resource then value.ref
        when Regexp then text(value.inspect)
        when *SHOWN then text(value.to_s)
        else hidden(kind(value), value, key)
        end
      end
      private_class_method :data

      def self.hidden(kind, value, key)
        return { '__ptype' => kind } if key.nil?

        inner = value.respond_to?(:unwrap) ? value.unwrap : value
        inner = inner._pcore_init_hash if inner.respond_to?(:_pcore_init_hash)
        inner = inner.to_s if inner.equal?(value) && kind != 'Sensitive'
        digest = OpenSSL::HMAC.hexdigest('SHA256', key, JSON.generate(data(inner, key)))
        { '__ptype' => kind, 'mark' => digest[0, MARK_DIGITS] }
      end
      private_class_method :hidden

      # No two keys become one, and none makes its value a placeholder, of which people see the type only.
      def self.members(value, key)
        value.each_with_object({}) do |(name, item), found|
          text = key_text(name, key)
          text = "#{text} (#{kind(name)})" while found.key?(text)
          found[text] = data(item, key)
        end
      end
      private_class_method :members

      def self.key_text(name, key)
        return text(name, key).sub(/\A\\*__ptype\z/) { |own| "\\#{own}" } if name.is_a?(String)

        found = data(name)
        found.is_a?(Hash) || found.is_a?(Array) ? kind(name) : found.to_s
      end
      private_class_method :key_text

      def self.kind(value)
        Puppet::Pops::Types::TypeCalculator.infer(value).simple_name
      end
      private_class_method :kind

      # A preview shows bytes that are no text, because it compares them.
      def self.text(value, key = nil)
        return [value].pack('m0') if value.encoding == Encoding::ASCII_8BIT && !value.ascii_only?

        plain = value.encoding == Encoding::UTF_8 ? value : value.encode(Encoding::UTF_8, invalid: :replace, undef: :replace)
        key ? plain.scrub { |bytes| bytes.bytes.map { |byte| format('\\x%02x', byte) }.join } : plain.scrub
      end
      private_class_method :text
    end
  end
end
