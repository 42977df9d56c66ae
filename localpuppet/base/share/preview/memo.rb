# frozen_string_literal: true

require 'timeout'
require_relative 'reads'

module LocalpuppetPreview
  # Results of reading files that depend on nothing but the file: syntax trees, data, compiled Ruby.
  #
  # A compile reports which ones it lacked, and the parent computes them for the compiles after it. A
  # compile that uses one counts the read. The parent executes no code of a release for this.
  module Memo
    FILES = 20_000
    BYTES = 2 * 1024 * 1024
    # Seconds for one file. Data may refer to itself so often that it never ends.
    SECONDS = 10

    @known = {}
    @lacking = []

    class << self
      def lacking
        @lacking + Reads.new_places.map { |path| ['place', path] }
      end

      # Return what is known of a file, and count the read; `nil` and a wish if nothing is.
      def use(kind, path)
        path = path.to_s
        value = @known[[kind, path]]
        return lack(kind, path) if value.nil?

        Reads.file(path)
        value
      end

      # Compute what a compile lacked. Failures are left to the compiles, which report them; they have limits.
      # A file that needs too much time or memory is the last one.
      def learn(kind, path)
        return Reads.learn(path) if kind == 'place'
        return if @full || @known.size >= FILES || !kinds.key?(kind) || !plain?(path)

        @known[[kind, path]] ||= Timeout.timeout(SECONDS) { kinds.fetch(kind).call(path) }
      rescue Timeout::Error, NoMemoryError
        @full = true
      rescue StandardError, ScriptError, SystemStackError
        nil
      end

      private

      # A compile may name any path: devices, pipes and files outside of the release are not read.
      def plain?(path)
        File.expand_path(path) == path && Reads.name(path) && File.file?(path) && File.size(path) <= BYTES
      end

      def lack(kind, path)
        @lacking << [kind, path] if Reads.on? && Reads.name(path)
        nil
      end

      def kinds
        parsers = Puppet::Pops::Parser
        @kinds ||= {
          'manifest' => ->(path) { parsers::EvaluatingParser.singleton.parse_file(path) },
          'text' => ->(path) { text(parsers::EvaluatingParser, path) },
          'epp' => ->(path) { parsers::EvaluatingParser::EvaluatingEppParser.singleton.parse_file(path) },
          'data' => ->(path) { data(path) },
          'metadata' => ->(path) { Puppet::Util::Json.load(File.read(path, encoding: 'utf-8')) },
          'erb' => ->(path) { erb(path) },
          'ruby' => ->(path) { RubyVM::InstructionSequence.compile_file(path) }
        }
      end

      def text(parser, path)
        content = Puppet::FileSystem.read(path, encoding: 'utf-8')
        [content, parser.singleton.parse_string(content, path)]
      end

      def data(path)
        content = Puppet::FileSystem.read(path, encoding: 'utf-8')
        return Puppet::Util::Json.load(content).then { |data| data if data.is_a?(Hash) } if path.end_with?('.json')

        data = Puppet::Util::Yaml.safe_load(content, [Symbol], path)
        Puppet::Pops::Lookup::HieraConfig.symkeys_to_string(data) if data.is_a?(Hash)
      end

      def erb(path)
        content = Puppet::FileSystem.read_preserve_line_endings(path)
        [content, Puppet::Util.create_erb(content)]
      end
    end

    # Puppet::Pops::Parser::EvaluatingParser, and that of EPP
    module Parser
      def parse_file(file)
        kind = is_a?(Puppet::Pops::Parser::EvaluatingParser::EvaluatingEppParser) ? 'epp' : 'manifest'
        (Memo.use(kind, file) if Reads.on?) || super
      end

      def parse_string(text, file = nil)
        return super unless Reads.on? && file && instance_of?(Puppet::Pops::Parser::EvaluatingParser)

        content, model = Memo.use('text', file)
        content == text ? model : super
      end
    end

    # Puppet::Module: of metadata.json, only what Puppet uses to compile counts: see data_keys.py. A missing
    # file counts as one without dependencies.
    module Metadata
      KEY = '?module'
      READERS = %i[
        metadata has_metadata? forge_name author license source version summary description project_page dependencies
      ].freeze
      # What looks at the metadata of other modules, too.
      OF_ALL = %i[unmet_dependencies required_by].freeze

      def read_metadata
        file = metadata_file
        return super unless Reads.on? && file

        is_file = Reads.pause { File.file?(file) }
        return super unless is_file || Reads.pause { !File.exist?(file) && !File.symlink?(file) }

        Reads.key(file, KEY)
        Reads.by_key(file) { (is_file && Memo.use('metadata', file)) || super }
      end

      READERS.each do |name|
        define_method(name) do
          Reads.file(metadata_file) if Reads.from_release?
          super()
        end
      end

      OF_ALL.each do |name|
        define_method(name) do
          Requirements.note(environment) if Reads.from_release?
          super()
        end
      end
    end

    # Puppet::Node::Environment
    module Requirements
      def self.note(environment)
        environment.modules.each { |mod| Reads.file(mod.metadata_file) }
      end

      def module_requirements
        Requirements.note(self) if Reads.from_release?
        super
      end

      def module_by_forge_name(*)
        Requirements.note(self) if Reads.from_release?
        super
      end
    end

    # Puppet::Util
    module Erb
      def create_erb(content)
        return super unless Reads.on? && (path = Memo::Erb.path)

        known, erb = Memo.use('erb', path)
        known == content ? erb : super
      end

      class << self
        attr_accessor :path
      end
    end

    # RubyVM::InstructionSequence
    module Load
      # The lean start loads some files as empty ones: see feature_index.rb.
      def load_iseq(path)
        (super if defined?(super)) || (Memo.use('ruby', path) if Reads.on?)
      end
    end

    def self.install
      Puppet::Pops::Parser::EvaluatingParser.prepend(Parser)
      Puppet::Module.prepend(Metadata)
      Puppet::Node::Environment.prepend(Requirements)
      Puppet::Util.singleton_class.prepend(Erb)
      RubyVM::InstructionSequence.singleton_class.prepend(Load)
    end
  end
end
