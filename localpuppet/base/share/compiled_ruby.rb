# frozen_string_literal: true

require 'digest'

# A cache of compiled Ruby: without it, every run reads and compiles the files of Puppet, Facter and
# Ruby's library again, which takes a third of a short run. Code of modules is not cached: a
# release's files are always read.
#
# The cache is one file, the pack, which compile_ruby.rb builds:
#
#   localpuppet compiled ruby 1 KEY\n      KEY: SHA-256 of the interpreter, see `key`
#   LENGTH SHA256\n                        of the index
#   the index: OFFSET LENGTH SHA256 SIZE INODE MTIME CTIME PATH\n for each file, the times in ns
#   the compiled files; offsets count from the end of the index
#
# If the pack, an entry or a source file is invalid or has changed, Ruby reads the source file as
# usual.
module LocalpuppetCompiledRuby
  FORMAT = 'localpuppet compiled ruby 1'
  # More than any Puppet has: some 1,200 files, 8 MB compiled.
  FILES = 5_000
  INDEX = 2 * 1024 * 1024
  ONE = 4 * 1024 * 1024

  # The place of a compiled file in the pack, and the stamp of its source.
  Entry = Struct.new(:offset, :length, :sha256, :stamp)

  # Return an id of the interpreter: its description, and its files, because a security update does
  # not change the description.
  def self.key
    config = RbConfig::CONFIG
    files = [RbConfig.ruby, File.join(config['libdir'], config['LIBRUBY_SO'])]
    stamps = files.map { |file| File.file?(file) ? stamp(File.stat(file)) : '' }
    options = RubyVM::InstructionSequence.compile_option.sort_by(&:first).inspect
    Digest::SHA256.hexdigest([RUBY_DESCRIPTION, *stamps, options].join("\n"))
  end

  # Return a stamp that changes with a file's content.
  def self.stamp(stat)
    times = [stat.mtime, stat.ctime].map { |time| (time.to_i * 1_000_000_000) + time.nsec }
    [stat.size, stat.ino, *times].join(' ')
  end

  # The pack, open for reading.
  class Pack
    # Return the pack of a directory or descriptor, `nil` without one that this interpreter can use.
    def self.open(place)
      file = inherited?(place) ? inherited(place) : own(place)
      return unless file

      file.binmode
      return unless file.gets("\n", 200) == "#{FORMAT} #{LocalpuppetCompiledRuby.key}\n"

      length, sha256 = file.gets("\n", 100).to_s.split
      length = Integer(length, 10)
      return if length > INDEX

      index = file.read(length).to_s
      new(file, index) if Digest::SHA256.hexdigest(index) == sha256
    rescue SystemCallError, ArgumentError, TypeError
      nil
    end

    def self.inherited?(place)
      place.match?(/\A\d+\z/)
    end

    # localpuppet has checked it, and sealed it against writes.
    def self.inherited(number)
      IO.for_fd(Integer(number, 10), 'rb').tap { |file| file.close_on_exec = true }
    end

    def self.own(directory)
      file = File.open(File.join(directory, 'pack'), File::RDONLY | File::NOFOLLOW | File::NONBLOCK)
      stat = file.stat
      file if stat.file? && stat.owned? && stat.mode.nobits?(0o077)
    end
    private_class_method :inherited, :own

    attr_reader :entries

    def initialize(file, index)
      @file = file
      @start = file.pos
      @entries = {}
      index.force_encoding(Encoding.find('filesystem')).each_line(chomp: true) do |line|
        offset, length, sha256, size, inode, mtime, ctime, path = line.split(' ', 8)
        @entries[path] = Entry.new(Integer(offset, 10), Integer(length, 10), sha256,
                                   "#{size} #{inode} #{mtime} #{ctime}")
      end
    end

    # Return the entry of an unchanged file; `nil` without one.
    def entry(path)
      found = @entries[path]
      found if found && found.stamp == LocalpuppetCompiledRuby.stamp(File.stat(path))
    rescue SystemCallError
      nil
    end

    # Return the compiled form; `nil` if it is damaged.
    def bytes(entry)
      return if entry.length > ONE

      read = @file.pread(entry.length, @start + entry.offset)
      read if Digest::SHA256.hexdigest(read) == entry.sha256
    rescue SystemCallError, EOFError
      nil
    end
  end

  # Loads files from the pack, and records those that it lacks.
  class Loader
    def initialize(directory, record:)
      @directory = directory
      @pack = Pack.open(directory)
      gems = defined?(Gem) ? Gem.path : []
      @roots = [*$LOAD_PATH, *gems].select { |root| root.start_with?('/') }
                                       .map { |root| root.delete_suffix('/') + '/' }.uniq
      record &&= !Pack.inherited?(directory)
      @missed = {}
      @process = Process.pid
      at_exit { wish if record && Process.pid == @process && !@missed.empty? }
    end

    # Make this forked process record its own missing files.
    def forked
      @process = Process.pid
    end

    # Return a file's compiled form; `nil` to make Ruby read the source.
    def load(path)
      return if $VERBOSE || !path.start_with?(*@roots)

      entry = @pack&.entry(path)
      if entry
        return if entry.length.zero? # it cannot be compiled before it runs

        bytes = @pack.bytes(entry)
        return RubyVM::InstructionSequence.load_from_binary(bytes) if bytes
      end
      @missed[path] = true if @missed.size < FILES
      nil
    rescue RuntimeError # compiled by another Ruby after all
      nil
    end

    private

    # Record the missing files for compile_ruby.rb.
    def wish
      Dir.mkdir(@directory, 0o700) unless File.directory?(@directory)
      name = File.join(@directory, "wanted.#{Process.pid}")
      File.open(name, File::WRONLY | File::CREAT | File::EXCL, 0o600) do |file|
        file.puts(@missed.keys.reject { |path| path.include?("\n") })
      end
      File.rename(name, File.join(@directory, 'wanted'))
    rescue SystemCallError
      nil # for example: a full disk; the next run tries again
    end
  end

  # Make Ruby load files from the pack of a directory, and record those that it lacks.
  def self.start(directory, record: true)
    return unless defined?(RubyVM::InstructionSequence)

    @loader = loader = Loader.new(directory, record: record)
    RubyVM::InstructionSequence.define_singleton_method(:load_iseq) { |path| loader.load(path) }
  end

  # Make this forked process record missing files as a separate run.
  def self.forked
    @loader&.forked
  end
end
