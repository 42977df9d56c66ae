# frozen_string_literal: true

require 'digest'

# Compiled Ruby, kept from run to run: what Puppet, Facter and Ruby's own library consist of is read
# and compiled again in every run otherwise, which takes a third of a short one. Code of modules is
# not kept: a release's files are always read.
#
# The pack is one file, which compile_ruby.rb makes:
#
#   localpuppet compiled ruby 1 KEY\n      KEY: SHA-256 of what compiled it, see `key`
#   LENGTH SHA256\n                        of the index
#   the index: OFFSET LENGTH SHA256 SIZE INODE MTIME CTIME PATH\n for each file, the times in ns
#   what the offsets, from the end of the index on, point into
#
# Whatever is wrong with it, with one file in it or with a file that was compiled, that file is read
# as if there were no pack.
module LocalpuppetCompiledRuby
  FORMAT = 'localpuppet compiled ruby 1'
  # More than anybody's Puppet has: some 1,200 files, 8 MB compiled.
  FILES = 5_000
  INDEX = 2 * 1024 * 1024
  ONE = 4 * 1024 * 1024

  # Where a file's compiled form is, and which file it was made of.
  Entry = Struct.new(:offset, :length, :sha256, :stamp)

  # Return what tells one interpreter from another: its words, and its files, because a security
  # update leaves the words as they are.
  def self.key
    config = RbConfig::CONFIG
    files = [RbConfig.ruby, File.join(config['libdir'], config['LIBRUBY_SO'])]
    stamps = files.map { |file| File.file?(file) ? stamp(File.stat(file)) : '' }
    options = RubyVM::InstructionSequence.compile_option.sort_by(&:first).inspect
    Digest::SHA256.hexdigest([RUBY_DESCRIPTION, *stamps, options].join("\n"))
  end

  # Return what changes with a file's content.
  def self.stamp(stat)
    times = [stat.mtime, stat.ctime].map { |time| (time.to_i * 1_000_000_000) + time.nsec }
    [stat.size, stat.ino, *times].join(' ')
  end

  # The pack, open for reading.
  class Pack
    # Return the pack of a directory, `nil` where there is none that this interpreter could use.
    def self.open(directory)
      file = File.open(File.join(directory, 'pack'), File::RDONLY | File::NOFOLLOW | File::NONBLOCK)
      stat = file.stat
      return unless stat.file? && stat.owned? && stat.mode.nobits?(0o077)

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

    # Return the entry of a file that is as it was; `nil` for no entry.
    def entry(path)
      found = @entries[path]
      found if found && found.stamp == LocalpuppetCompiledRuby.stamp(File.stat(path))
    rescue SystemCallError
      nil
    end

    # Return the compiled form, as it was written; `nil` when it is not that any more.
    def bytes(entry)
      return if entry.length > ONE

      read = @file.pread(entry.length, @start + entry.offset)
      read if Digest::SHA256.hexdigest(read) == entry.sha256
    rescue SystemCallError, EOFError
      nil
    end
  end

  # What a run takes from the pack, and what it would have liked to.
  class Loader
    def initialize(directory)
      @directory = directory
      @pack = Pack.open(directory)
      gems = defined?(Gem) ? Gem.path : []
      @roots = [*$LOAD_PATH, *gems].select { |root| root.start_with?('/') }
                                       .map { |root| root.delete_suffix('/') + '/' }.uniq
      @missed = {}
      @process = Process.pid
      at_exit { wish if Process.pid == @process && !@missed.empty? }
    end

    # Speak for this process, which was forked, as if it had begun here.
    def forked
      @process = Process.pid
    end

    # Return a file's compiled form; `nil` to have Ruby read it.
    def load(path)
      return if $VERBOSE || !path.start_with?(*@roots)

      entry = @pack&.entry(path)
      if entry
        return if entry.length.zero? # it cannot be compiled before it is run

        bytes = @pack.bytes(entry)
        return RubyVM::InstructionSequence.load_from_binary(bytes) if bytes
      end
      @missed[path] = true if @missed.size < FILES
      nil
    rescue RuntimeError # of another Ruby after all
      nil
    end

    private

    # Say what was missed, for compile_ruby.rb to read.
    def wish
      Dir.mkdir(@directory, 0o700) unless File.directory?(@directory)
      name = File.join(@directory, "wanted.#{Process.pid}")
      File.open(name, File::WRONLY | File::CREAT | File::EXCL, 0o600) do |file|
        file.puts(@missed.keys.reject { |path| path.include?("\n") })
      end
      File.rename(name, File.join(@directory, 'wanted'))
    rescue SystemCallError
      nil # a full disk, say: then the next run will
    end
  end

  # Begin to take what Ruby loads from the pack of a directory.
  def self.start(directory)
    return unless defined?(RubyVM::InstructionSequence)

    @loader = loader = Loader.new(directory)
    RubyVM::InstructionSequence.define_singleton_method(:load_iseq) { |path| loader.load(path) }
  end

  # Go on in a process that was forked to be a run of its own.
  def self.forked
    @loader&.forked
  end
end
