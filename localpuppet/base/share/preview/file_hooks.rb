# frozen_string_literal: true

require 'openssl'
require 'pathname'
require 'zlib'
require_relative 'reads'

module LocalpuppetPreview
  # Hooks of Ruby's own methods that read files and directories. What they do not change: results.
  module FileHooks
    READ = %i[read binread readlines foreach].freeze
    CHECK = %i[
      exist? exists? file? directory? readable? readable_real? executable? executable_real? symlink? pipe? socket?
      blockdev? chardev? owned? grpowned? writable? writable_real? world_readable? world_writable? setuid? setgid? sticky?
      stat lstat ftype readlink realpath realdirpath identical?
    ].freeze
    # What these return depends on modes, or on how names lead to contents, which no digest has.
    KIND = %i[
      executable? executable_real? symlink? owned? grpowned? writable? writable_real? world_readable? world_writable?
      setuid? setgid? sticky? lstat ftype readlink identical?
    ].freeze
    # What these return depends on the content, or on the copy of the release.
    CONTENT = %i[size size? zero? empty?].freeze
    TIMES = %i[mtime ctime atime birthtime].freeze
    # What a file of the release has besides its content; `size` of one that is open is that of its content.
    METADATA = %i[
      <=> size size? zero? blocks blksize mtime ctime atime birthtime dev dev_major dev_minor ino nlink mode uid gid
      executable? executable_real? owned? grpowned? writable? writable_real? world_readable? world_writable?
      setuid? setgid? sticky? inspect
    ].freeze
    # `test`: letters that ask for times, modes and owners
    TEST_METADATA = 'MACuUkgGoOwWxX-=<>l'
    LIST = %i[entries children each_child foreach empty? open].freeze
    private_constant :READ, :CHECK, :KIND, :CONTENT, :TIMES, :METADATA, :TEST_METADATA, :LIST

    # Hook the methods that Ruby has.
    def self.hook(target, names, &note)
      target.singleton_class.prepend(layer(names.select { |name| target.respond_to?(name, true) }, note))
    end

    # Return methods that call `note`. They are called so often that a Hash for no keywords would count.
    def self.layer(names, note)
      Module.new do
        names.each do |name|
          define_method(name) do |*arguments, &block|
            note.call(*arguments) if Reads.on?
            super(*arguments, &block)
          end
          ruby2_keywords(name) if respond_to?(:ruby2_keywords, true)
        end
      end
    end

    def self.install
      path = ->(name, *_, **_) { Reads.file(name) unless command?(name) }
      hook(IO, READ, &path)
      hook(IO, %i[sysopen], &path)
      hook(IO, %i[copy_stream]) { |from, *_| Reads.file(from) if from.is_a?(String) || from.is_a?(Pathname) }
      hook(File, %i[open new], &path)
      checks = ->(*names, **_) { names.each { |name| Reads.check(name) } }
      metadata = ->(*_, **_) { Reads.metadata }
      [File, FileTest].each do |target|
        hook(target, CHECK, &checks)
        hook(target, KIND, &metadata)
      end
      contents = ->(name, **_) { Reads.file(name) }
      hook(File, CONTENT, &contents)
      hook(FileTest, CONTENT, &contents)
      hook(File, TIMES) do |name, **_|
        Reads.check(name)
        Reads.metadata
      end
      hook(File::Stat, %i[new]) { |name, **_| Reads.check(name) }
      hook(File, %i[realpath realdirpath]) { |name, *_, **_| Reads.metadata if Reads.pause { File.symlink?(name) } }
      hook_instances(File::Stat, METADATA, &metadata)
      hook_instances(File, TIMES, &metadata)
      hook_instances(IO, %i[reopen]) { |name, *_, **_| Reads.file(name) if name.is_a?(String) || name.respond_to?(:to_path) }
      install_libraries
      install_directories
      [Opens, Loads].each { |layer| kernel(layer) }
    end

    # Code in C that opens files itself.
    def self.install_libraries
      hook(RubyVM::InstructionSequence, %i[compile_file]) { |name, *_, **_| Reads.file(name) }
      hook(RubyVM::AbstractSyntaxTree, %i[parse_file]) { |name, *_, **_| Reads.file(name) }
      hook(OpenSSL::Config, %i[load new]) { |name = nil, *_, **_| Reads.file(name) if name }
      hook_instances(OpenSSL::X509::Store, %i[add_file add_path]) { |name, *_, **_| Reads.file(name) }
      hook(Zlib::GzipReader, %i[open]) { |name, *_, **_| Reads.file(name) }
      hook_instances(ARGF.class, %i[read readlines readline gets each_line each each_char each_byte to_a getc getbyte file]) do |*_, **_|
        Reads.impure('reads ARGF')
      end
    end

    # Hook the methods that instances have.
    def self.hook_instances(target, names, &note)
      target.prepend(layer(names.select { |name| target.method_defined?(name) }, note))
    end

    # Hook functions, which are private methods of each object and public ones of Kernel. Before Ruby 3, what is
    # prepended to Kernel does not reach Object, which includes it already.
    def self.kernel(layer)
      Object.prepend(layer)
      open = layer.dup
      open.send(:public, *open.private_instance_methods(false))
      Kernel.singleton_class.prepend(open)
    end

    def self.install_directories
      hook(Dir, LIST + %i[new]) { |name, **_| Reads.list(name) }
      hook(Dir, %i[exist? exists?]) { |name, **_| Reads.check(name) }
      hook(Dir, %i[chdir]) { |*_, **_| Reads.impure('changes the working directory') if Reads.from_release? }
      hook(Dir, %i[glob]) { |patterns, *_, base: nil, **_| Array(patterns).each { |pattern| Globs.note(pattern, base) } }
      hook(Dir, %i[[]]) { |*patterns, base: nil, **_| patterns.flatten.each { |pattern| Globs.note(pattern, base) } }
    end

    def self.metadata?(command)
      TEST_METADATA.include?(command.is_a?(Integer) ? command.chr : command.to_s[0])
    end

    def self.command?(name)
      return false unless name.is_a?(String) && name.start_with?('|')

      Reads.program
      true
    end

    # `open` of Kernel.
    module Opens
      private

      def open(name = nil, *arguments, **options, &block)
        Reads.file(name) if Reads.on? && !name.respond_to?(:to_open) && !FileHooks.command?(name)
        super(*[name, *arguments].compact, **options, &block)
      end

      def test(command, *files)
        if Reads.on?
          files.each { |file| Reads.file(file) }
          Reads.metadata if FileHooks.metadata?(command)
        end
        super
      end
    end

    # Ruby code that is loaded. A process loads each file at most once, as a new Puppet does.
    module Loads
      private

      def require(feature)
        Features.note(feature) if Reads.on?
        super
      end

      def require_relative(feature)
        base = caller_locations(1, 1).first
        directory = File.dirname(base.absolute_path || base.path)
        path = File.expand_path(feature.to_s, directory)
        Kernel.require(path)
      end

      def load(file, *arguments)
        Features.load(file) if Reads.on?
        super
      end
    end

    # Where Ruby looks for a feature.
    module Features
      ENDS = ['', '.rb', '.so'].freeze

      def self.note(feature)
        feature = feature.to_path if feature.respond_to?(:to_path)
        return unless feature.is_a?(String)

        Reads.impure("loads #{feature}") if MachineHooks::LIBRARIES.include?(feature) && Reads.from_release? && !Reads.provider_loading?
        places = feature.start_with?('/', './', '../', '~') ? [feature] : $LOAD_PATH.map { |directory| File.join(directory.to_s, feature) }
        places.each do |place|
          next unless Reads.name(File.expand_path(place))
          return if candidates(place).any? { |path| try(path) }
        end
      end

      # `load` looks for the exact name: in the load path, and then in the working directory.
      def self.load(file)
        file = file.to_path if file.respond_to?(:to_path)
        return unless file.is_a?(String)

        places = file.start_with?('/', './', '../', '~') ? [] : $LOAD_PATH.map { |directory| File.join(directory.to_s, file) }
        places.select! { |place| Reads.name(File.expand_path(place)) }
        [*places, file].any? { |place| try(File.expand_path(place)) }
      end

      def self.candidates(place)
        place.end_with?('.rb', '.so') ? [place] : ["#{place}.rb", "#{place}.so"]
      end

      def self.try(path)
        Reads.file(path)
        Reads.pause { File.file?(path) }
      end
    end

    # The directories whose entries a pattern depends on.
    module Globs
      MAGIC = /[*?\[{]/.freeze
      # Of all flags that a caller can pass, those with which more names match.
      FLAGS = File::FNM_DOTMATCH | File::FNM_CASEFOLD
      private_constant :MAGIC, :FLAGS

      def self.note(pattern, base)
        pattern = pattern.to_path if pattern.respond_to?(:to_path)
        return unless pattern.is_a?(String)

        path = File.expand_path(pattern, base)
        return Reads.check(path) unless path.match?(MAGIC) # most are names of manifests

        Reads.pause { alternatives(path) }.each { |one| walk('/', one.split('/').reject(&:empty?)) }
      end

      # Expand braces.
      def self.alternatives(pattern)
        match = pattern.match(/\{([^{}]*)\}/)
        return [pattern] unless match

        match[1].split(',', -1).flat_map { |word| alternatives("#{match.pre_match}#{word}#{match.post_match}") }
      end

      def self.walk(at, parts)
        index = parts.index { |part| part.match?(MAGIC) }
        return Reads.check(File.join(at, *parts)) if index.nil?

        directory = File.join(at, *parts.first(index))
        part = parts[index]
        rest = parts.drop(index + 1)
        return Reads.list(directory, deep: true) if part.include?('**')

        Reads.list(directory)
        return if rest.empty?

        Reads.pause { Dir.exist?(directory) ? Dir.children(directory) : [] }.sort.each do |entry|
          walk(File.join(directory, entry), rest) if File.fnmatch(part, entry, FLAGS)
        end
      end
    end
  end
end
