# frozen_string_literal: true

require 'pathname'
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
    # What these return depends on the content, or on the copy of the release.
    CONTENT = %i[size size? zero? empty?].freeze
    TIMES = %i[mtime ctime atime birthtime].freeze
    LIST = %i[entries children each_child foreach empty? open].freeze
    private_constant :READ, :CHECK, :CONTENT, :TIMES, :LIST

    # Hook the methods that Ruby has.
    def self.hook(target, names, &note)
      present = names.select { |name| target.respond_to?(name, true) }
      layer = Module.new do
        present.each do |name|
          define_method(name) do |*arguments, **options, &block|
            note.call(*arguments, **options) if Reads.on?
            super(*arguments, **options, &block)
          end
        end
      end
      target.singleton_class.prepend(layer)
    end

    def self.install
      path = ->(name, *_, **_) { Reads.file(name) unless command?(name) }
      hook(IO, READ, &path)
      hook(IO, %i[sysopen], &path)
      hook(IO, %i[copy_stream]) { |from, *_| Reads.file(from) if from.is_a?(String) || from.is_a?(Pathname) }
      hook(File, %i[open new], &path)
      checks = ->(*names, **_) { names.each { |name| Reads.check(name) } }
      hook(File, CHECK, &checks)
      hook(FileTest, CHECK, &checks)
      contents = ->(name, **_) { Reads.file(name) }
      hook(File, CONTENT, &contents)
      hook(FileTest, CONTENT, &contents)
      hook(File, TIMES) do |name, **_|
        Reads.check(name)
        Reads.impure('reads the times of a file') if Reads.from_release?
      end
      hook(File::Stat, %i[new]) { |name, **_| Reads.check(name) }
      install_directories
      [Opens, Loads].each { |layer| kernel(layer) }
    end

    # Hook functions, which are private methods of each object and public ones of Kernel.
    def self.kernel(layer)
      Kernel.prepend(layer)
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

    def self.command?(name)
      return false unless name.is_a?(String) && name.start_with?('|')

      Reads.impure('starts a program')
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
        files.each { |file| Reads.file(file) } if Reads.on?
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
        if Reads.on?
          Reads.file(file)
          Reads.ruby(file)
        end
        super
      end
    end

    # Where Ruby looks for a feature.
    module Features
      ENDS = ['', '.rb', '.so'].freeze

      def self.note(feature)
        feature = feature.to_path if feature.respond_to?(:to_path)
        return unless feature.is_a?(String)

        Reads.impure("loads #{feature}") if MachineHooks::LIBRARIES.include?(feature) && Reads.from_release?
        places = feature.start_with?('/', './', '../', '~') ? [feature] : $LOAD_PATH.map { |directory| File.join(directory.to_s, feature) }
        places.each do |place|
          next unless Reads.name(File.expand_path(place))
          return if candidates(place).any? { |path| try(path) }
        end
      end

      def self.candidates(place)
        place.end_with?('.rb', '.so') ? [place] : ["#{place}.rb", "#{place}.so"]
      end

      def self.try(path)
        Reads.file(path)
        return false unless Reads.pause { File.file?(path) }

        Reads.ruby(path)
        true
      end
    end

    # The directories whose entries a pattern depends on.
    module Globs
      MAGIC = /[*?\[{]/.freeze
      private_constant :MAGIC

      def self.note(pattern, base)
        pattern = pattern.to_path if pattern.respond_to?(:to_path)
        return unless pattern.is_a?(String)

        path = File.expand_path(pattern, base)
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
          walk(File.join(directory, entry), rest) if File.fnmatch(part, entry)
        end
      end
    end
  end
end
