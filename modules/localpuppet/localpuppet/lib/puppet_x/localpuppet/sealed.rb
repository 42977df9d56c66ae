# frozen_string_literal: true

require 'erb'
require 'json'
require 'shellwords'

module PuppetX
  module Localpuppet
    # Sealed values of the release. The supervisor of the run opens them: it has the node's key, and
    # answers on a socket that this process inherits and its children do not.
    #
    # What was opened is masked in all that Puppet writes; `Guards` has the places. Derived forms of a
    # value (base64, a part, a digest) are other texts, and are not masked.
    module Sealed
      class Error < Puppet::Error; end

      VARIABLE = 'LOCALPUPPET_SEALED'
      LATE = "is not opened while a catalog is applied (call the function without 'Deferred': this node compiles its catalog itself)"
      # The value of the variable with which nothing is opened: previews, lookups, CI.
      PLACEHOLDERS = 'placeholders'
      PATIENCE = 30
      # Characters of the shortest text that is masked.
      MASKED = 8
      PLACE = %r{\A.*/sealed/values/((?:[A-Za-z0-9_][^/]*/)+)\z}.freeze
      KEY = %r{\A[A-Za-z0-9_][A-Za-z0-9_.:+=@-]*\z}.freeze
      FORM = %r{\Aschema: 1\ngroup: "(?<group>[^"\n]+)"\nserial: \d+\nnumber: (?<number>\d+)\ntype: (?<type>[a-z]+)\nage: }.freeze
      # Text that has one spelling.
      PLAIN = /\A[\w.-]*\z/.freeze
      SENSITIVE = Puppet::Pops::Types::PSensitiveType::Sensitive
      BINARY = Puppet::Pops::Types::PBinaryType::Binary

      @opened = {}
      @secrets = {}

      # @param directory [String] a level of the hierarchy: a directory below `sealed/values`
      # @param key [String]
      # @return [Object, nil] the value; nil if this level has none
      # @raise [Error] one line: this node cannot open it
      def self.find(directory, key)
        file = File.join(directory, "#{key}.yaml")
        return unless KEY.match?(key) && File.exist?(file)

        level = PLACE.match("#{directory}/")
        raise Error, "#{directory}: is not below sealed/values (set 'datadir: sealed/values' in hiera.yaml)" if level.nil?

        name = "#{level[1]}#{key}"
        Guards.install
        return placeholder(name, file) if placeholders?

        @opened[name] ||= applying? ? raise(Error, "#{name}: #{LATE}") : open(name)
      end

      # The guards see the catalog before it is applied. Puppet 8 calls functions of `Deferred` later.
      def self.applying?
        caller_locations.any? { |place| place.path.end_with?('/puppet/transaction.rb') }
      end
      private_class_method :applying?

      # @return [String] the text with every opened value replaced by the name of its key
      def self.masked(text)
        return text if @secrets.empty?

        bytes = text.b
        # A long text may contain a short one.
        @longest_first ||= @secrets.sort_by { |secret, _| -secret.bytesize }
        @longest_first.each { |secret, name| bytes.gsub!(secret, "[sealed #{name}]".b) if bytes.include?(secret) }
        bytes.force_encoding(text.encoding)
      end

      # @param among [Array<String>] the texts to look for
      # @return [Boolean] whether a value of a catalog has an opened value in it
      def self.in?(value, among: @secrets.keys)
        !among.empty? && !within(value, among).empty?
      end

      # @return [Array<String>] those texts that a value has; one look for each, however large the value is
      def self.within(value, among = @secrets.keys)
        bytes = gathered(value, String.new(encoding: Encoding::BINARY))
        among.select { |secret| bytes.include?(secret) }
      end

      def self.gathered(value, bytes)
        case value
        when String then bytes << value.b << 0
        when Numeric then bytes << value.to_s << 0
        when Array then value.each { |item| gathered(item, bytes) }
        when Hash then value.each { |pair| gathered(pair, bytes) }
        when BINARY then bytes << value.binary_buffer << 0
        end
        bytes
      end
      private_class_method :gathered

      def self.placeholders?
        !defined?(::LOCALPUPPET_SEALED) && (ENV.fetch(VARIABLE, nil) == PLACEHOLDERS || defined?(::LocalpuppetPreview))
      end

      # A value that changes exactly if the number does, which only `localpuppet sealed set` raises.
      def self.placeholder(name, file)
        form = FORM.match(File.binread(file)) || raise(Error, "#{file}: is not a sealed value")
        text = "[sealed #{name}, number #{form[:number]}]"
        return text if form[:type] == 'plain'

        SENSITIVE.new((form[:type] == 'data') ? { 'sealed' => text } : text)
      end
      private_class_method :placeholder

      def self.open(name)
        answer = ask(name)
        raise Error, "#{name}: #{answer['error']}" if answer['error']

        text = answer.key?('base64') ? answer['base64'].unpack1('m0') : answer.fetch('text')
        value = (answer['type'] == 'data') ? JSON.parse(text) : text
        hide(value, name)
        hide(answer['base64'], name) # as Puppet shows a Binary
        return value if answer['type'] == 'plain'

        SENSITIVE.new(answer.key?('base64') ? BINARY.from_binary_string(text) : value)
      end
      private_class_method :open

      def self.ask(name)
        socket = channel
        socket.write("#{JSON.generate([name])}\n")
        raise Error, "#{name}: the supervisor did not answer within #{PATIENCE} s" unless IO.select([socket], nil, nil, PATIENCE)

        JSON.parse(socket.gets || raise(Error, "#{name}: the supervisor of this run has ended"))
      rescue SystemCallError, JSON::ParserError => e
        raise Error, "#{name}: the supervisor cannot be asked: #{e.class}"
      end
      private_class_method :ask

      def self.channel
        raise Error, unavailable unless defined?(::LOCALPUPPET_SEALED)

        @channel ||= begin
          leave_no_core
          IO.for_fd(::LOCALPUPPET_SEALED, 'r+b', autoclose: false).tap { |socket| socket.sync = true }
        end
      end
      private_class_method :channel

      # A core dump would have the values; programs that this process executes leave theirs.
      def self.leave_no_core
        require 'fiddle'
        prctl = Fiddle::Handle::DEFAULT['prctl']
        Fiddle::Function.new(prctl, [Fiddle::TYPE_INT, Fiddle::TYPE_LONG], Fiddle::TYPE_INT).call(4, 0) # PR_SET_DUMPABLE
      rescue LoadError
        Process.setrlimit(:CORE, 0)
      end
      private_class_method :leave_no_core

      def self.unavailable
        reason = ENV.fetch(VARIABLE, '')
        reason = "only 'localpuppet apply' opens sealed values" if reason.empty?
        "sealed values are not opened here: #{reason}"
      end
      private_class_method :unavailable

      # Remember the texts of a value, and each line of a text, in all spellings.
      def self.hide(value, name)
        case value
        when Hash then value.each_value { |item| hide(item, name) }
        when Array then value.each { |item| hide(item, name) }
        when String
          [value, *value.lines.map(&:strip)].uniq.each do |text|
            spellings(text).each { |form| @secrets[form.b] ||= name } if text.length >= MASKED
          end
          @longest_first = nil
        when Numeric then hide(value.to_s, name)
        end
      end
      private_class_method :hide

      def self.spellings(text)
        utf8 = text.dup.force_encoding(Encoding::UTF_8)
        return [text] if !utf8.valid_encoding? || utf8.match?(PLAIN)

        puppet = Puppet::Pops::Types::StringConverter.singleton
        quoted = [JSON.generate(utf8), utf8.inspect, utf8.dump, puppet.puppet_quote(utf8), puppet.puppet_quote(utf8, true)]
        [text, *quoted.map { |form| form[1..-2] }, *escapes(utf8)].uniq
      end
      private_class_method :spellings

      # As YAML and SQL, Puppet's `shellquote`, shells, URLs and XML have a text.
      def self.escapes(text)
        quoted = text.gsub(/[!"`$\\]/) { |sign| "\\#{sign}" }
        [text.gsub("'", "''"), quoted, text.shellescape, ERB::Util.url_encode(text), ERB::Util.html_escape(text)]
      end
      private_class_method :escapes

      # The places at which Puppet would write, keep or merge an opened value.
      module Guards
        # Parameters that Puppet can redact although they are no properties.
        COMMANDS = %i[command unless onlyif].freeze

        # Puppet installs them once, before the first value.
        def self.install
          return if @installed

          @installed = true
          Puppet::Util::Log.prepend(Logs)
          Puppet::Configurer.prepend(Reports) if defined?(Puppet::Configurer)
          Puppet::Resource::Catalog.prepend(Catalogs)
          Puppet::Pops::MergeStrategy.prepend(Merges)
        end

        # Puppet::Util::Log
        module Logs
          def message=(text)
            super(text && Sealed.masked(text.to_s))
          end
        end

        # Puppet::Configurer: events of a report
        module Reports
          PARTS = %w[message previous_value desired_value historical_value].freeze

          private

          def send_report(report)
            report.resource_statuses.each_value { |status| status.events.each { |event| mask(event) } }
            super
          end

          def mask(event)
            PARTS.each do |part|
              value = event.public_send(part)
              event.public_send("#{part}=", Sealed.masked(value.to_s)) if Sealed.in?(value) || Sealed.in?(value.to_s)
            end
          end
        end

        # Puppet::Resource::Catalog: a parameter with an opened value becomes sensitive, also after `unwrap`.
        # Titles and tags are in files of Puppet, too: they are refused.
        module Catalogs
          def to_ral
            open = resources.map { |one| [one.title.to_s, one.tags.to_a, one.to_hash.except(*one.sensitive_parameters)] }
            found = Sealed.within(open)
            resources.each { |resource| Guards.check(resource, found) } unless found.empty?
            Puppet::Type.type(:file).prepend(Files)
            super
          end
        end

        # Puppet::Type::File: neither a backup nor a difference, which would have the value before
        module Files
          def perform_backup(*)
            sealed_content? || super
          end

          def show_diff?(*)
            !sealed_content? && super
          end

          private

          def sealed_content?
            content = parameter(:content)
            !content.nil? && (content.sensitive || Sealed.in?(content.actual_content))
          end
        end

        # Puppet::Pops::MergeStrategy
        module Merges
          def merge(first, second)
            return super unless [first, second].any?(SENSITIVE)

            raise Error, "a sealed value cannot be merged by '#{self.class.key}' " \
                         '(look it up with the merge strategy first, or seal its secret parts under keys of their own)'
          end
        end

        # Make the parameters of a resource sensitive that have one of these texts.
        # @raise [Error] it cannot have this title or these tags
        def self.check(resource, found)
          type = resource.resource_type
          resource.each do |name, value|
            next unless COMMANDS.include?(name) || (type.respond_to?(:validproperty?) && type.validproperty?(name))

            resource.sensitive_parameters |= [name] if Sealed.in?(value, among: found)
          end
          names = type.respond_to?(:key_attributes) ? (type.key_attributes - COMMANDS).map { |name| resource[name] } : []
          return unless Sealed.in?([resource.title.to_s, *names, *resource.tags], among: found)

          raise Error, "#{resource.type}: a title, name or tag has a sealed value, which Puppet's own files would show " \
                       "(file: #{resource.file}, line: #{resource.line})"
        end
      end
    end
  end
end
