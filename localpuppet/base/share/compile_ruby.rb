# frozen_string_literal: true

# Compiles the files that the last run had to read: ruby compile_ruby.rb DIRECTORY
#
# It runs in the background after a run; compiled_ruby.rb describes the result. Entries of an older
# pack stay while their files are unchanged, so that runs of two releases do not rebuild the pack in
# turns.
require 'digest'
require 'rbconfig'
require_relative 'compiled_ruby'

Process.setpriority(Process::PRIO_PROCESS, 0, 19)
Process.setrlimit(Process::RLIMIT_CPU, 120)
File.umask(0o077)

# Builds a pack.
class Making
  # Maximum bytes of all compiled files together.
  TOTAL = 64 * 1024 * 1024
  # Maximum bytes of a source file.
  SOURCE = 2 * 1024 * 1024

  def initialize(directory, older)
    @directory = directory
    @older = older
    @index = ''.b
    @parts = []
    @offset = 0
    @files = 0
  end

  # Add a file: its entry in an older pack, or compiled.
  def add(path)
    stat = File.stat(path)
    stamp = LocalpuppetCompiledRuby.stamp(stat)
    bytes = kept(path) || (stat.size > SOURCE ? '' : compiled(path))
    # Skip a file that changed meanwhile: it is unknown which content was compiled.
    put(path, bytes, stamp) if LocalpuppetCompiledRuby.stamp(File.stat(path)) == stamp
  rescue SystemCallError
    nil # the file was deleted
  end

  # Write the pack, atomically.
  def write
    name = File.join(@directory, "pack.#{Process.pid}")
    File.open(name, File::WRONLY | File::CREAT | File::EXCL | File::BINARY, 0o600) do |file|
      file.write("#{LocalpuppetCompiledRuby::FORMAT} #{LocalpuppetCompiledRuby.key}\n",
                 "#{@index.bytesize} #{Digest::SHA256.hexdigest(@index)}\n", @index, *@parts)
      file.fsync
    end
    File.rename(name, File.join(@directory, 'pack'))
    File.open(@directory, &:fsync)
  ensure
    File.unlink(name) if File.exist?(name)
  end

  private

  def kept(path)
    entry = @older&.entry(path) or return
    entry.length.zero? ? '' : @older.bytes(entry)
  end

  # Return the compiled form; an empty string if the file cannot be compiled before it runs.
  def compiled(path)
    RubyVM::InstructionSequence.compile_file(path).to_binary
  rescue SyntaxError, RuntimeError
    ''
  end

  def put(path, bytes, stamp)
    bytes = '' if bytes.bytesize > LocalpuppetCompiledRuby::ONE
    line = "#{@offset} #{bytes.bytesize} #{Digest::SHA256.hexdigest(bytes)} #{stamp} #{path}\n".b
    return if @files == LocalpuppetCompiledRuby::FILES || @offset + bytes.bytesize > TOTAL ||
              @index.bytesize + line.bytesize > LocalpuppetCompiledRuby::INDEX

    @index << line
    @parts << bytes
    @offset += bytes.bytesize
    @files += 1
  end
end

directory = ARGV.fetch(0)
lock = File.open(File.join(directory, 'lock'), File::RDWR | File::CREAT | File::NOFOLLOW, 0o600)
exit unless lock.flock(File::LOCK_EX | File::LOCK_NB)

wanted = File.join(directory, 'wanted')
exit unless File.file?(wanted)
paths = File.foreach(wanted, chomp: true).first(LocalpuppetCompiledRuby::FILES)
# Deleted first: a file that cannot be compiled must not be tried for ever.
File.unlink(wanted)
Dir.glob(File.join(directory, '{pack,wanted}.*')).each { |rubbish| File.unlink(rubbish) }

older = LocalpuppetCompiledRuby::Pack.open(directory)
making = Making.new(directory, older)
# The files of the last run come first, in case of too many.
(paths | (older ? older.entries.keys : [])).each { |path| making.add(path) }
making.write
