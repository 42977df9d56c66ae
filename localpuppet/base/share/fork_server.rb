# frozen_string_literal: true

require 'json'
require 'set'
require 'socket'
require_relative 'compiled_ruby'

# A Puppet that has read its library, and forks for each run: what Ruby loads after lean_start.rb in
# a `puppet apply` that the agent has started (docs/adr/0035-fork-server.md).
#
# Nothing of settings, modules or a run is in the server: those come in the child. The server
# accepts a connection, looks who is there, and forks; the child says
#
#   hello PID                       and is told, in one message with the descriptors of the output
#                                   and of the node's lock, LENGTH\n and as many bytes of JSON
#   cold REASON | begun             it is not for a warm start and ends; or it goes on as Puppet
#   exiting CODE                    it ends by itself; in case that the server does not live to say
#
# and the server says in the end
#
#   exited CODE | killed SIGNAL     or, where no child was made: cold REASON
module LocalpuppetForkServer
  # Its exit code when another one is to take its place: fleet/agent/warming.py knows it, too.
  RECYCLE = 10
  # Seconds in which a child must have its request, and the most bytes of that.
  PATIENCE = 10
  REQUEST = 4 * 1024 * 1024
  # What Ruby or Puppet look at while their library is being read: another value needs another server.
  SAME = /\A(?:RUBY|GEM_|BUNDLE|LANG|LC_|AUGEAS|TZ\z|HOME\z|PATH\z)/
  # What Facter takes the operating system from, once, and the C library the time zone.
  SYSTEM = ['/etc/os-release', '/usr/lib/os-release', '/etc/localtime'].freeze

  # Which facter.conf takes the place of the machine's, and where the facts are that it has remembered.
  FACTER = defined?(LocalpuppetFacterConf) ? [LocalpuppetFacterConf.file, LocalpuppetFacterConf.cache] : nil

  # What is read before anything is known of a run. None of it looks at Puppet's settings.
  def self.read_library
    require 'puppet/util/command_line'
    require 'puppet/application/apply'
    require 'puppet/configurer'
    require 'facter'
    # Puppet lets other implementations take Facter's place; and Facter remembers what it met.
    Facter::SessionCache.invalidate_all_caches if defined?(Facter::SessionCache)
  end

  # What the server was made of: files, and directories in which others may come.
  class Library
    def initialize(pack)
      features = $LOADED_FEATURES.select { |path| path.start_with?('/') }
      libraries = File.foreach('/proc/self/maps', chomp: true).filter_map { |line| line[%r{ (/.*)}, 1] }
      gems = defined?(Gem) ? Gem::Specification.dirs : []
      @paths = [*features, *libraries, *gems, *SYSTEM, *Dir[File.join(__dir__, '*.rb')], facter_conf, pack].compact.uniq
      @stamps = stamps
      @roots = $LOADED_FEATURES.filter_map { |path| path[%r{\A(/.*)/(?:puppet|facter)\.rb\z}, 1] }.uniq
      @read = features.filter_map { |path| own_name(path) }.to_set
    end

    # Return what has changed since; `nil` for nothing.
    def changed
      @paths.zip(@stamps, stamps).find { |_, before, now| before != now }&.first
    end

    # Return a file of a module, or of what was synchronized, in whose place the server has read
    # Puppet's own, or which is one of Puppet's types, providers, faces or applications.
    def overridden(directories)
      directories.each do |directory|
        Dir.glob('{puppet,facter}/**/*.rb', base: directory).each do |name|
          return File.join(directory, name) if @read.include?(name) || core?(name)
        end
      end
      nil
    end

    private

    # Return the file that Facter was configured by when it was loaded.
    def facter_conf
      reader = Facter::ConfigReader if defined?(Facter::ConfigReader)
      reader.send(:default_path) if reader.respond_to?(:default_path, true)
    end

    # Return what `require` calls a file of Puppet's or Facter's; `nil` for others.
    def own_name(path)
      root = @roots.find { |one| path.start_with?("#{one}/") }
      path.delete_prefix("#{root}/") if root
    end

    # Return whether Puppet has a type, say, of that name. Functions are not of them: modules bring
    # their own of the same names, and a run's own loaders choose.
    def core?(name)
      name.match?(%r{\Apuppet/(?:type|provider|face|application)/}) &&
        @roots.any? { |root| File.exist?(File.join(root, name)) }
    end

    def stamps
      @paths.map do |path|
        LocalpuppetCompiledRuby.stamp(File.stat(path))
      rescue SystemCallError
        nil
      end
    end
  end

  # A run, in its child.
  class Run
    def initialize(connection, library, command)
      @connection = connection
      @library = library
      @command = command
    end

    # Become the Puppet that was asked for; end where nobody asks, or where it must run cold.
    def take
      @connection.write("hello #{Process.pid}\n")
      request, output, lock = receive
      reason = refusal(request)
      if reason
        @connection.write("cold #{reason}\n")
        exit!(0)
      end
      become(request, output, lock)
      @connection.write("begun\n")
      tell_at_exit
    rescue StandardError => e
      warn "localpuppet: a run was not begun: #{e.class}"
      exit!(1)
    end

    private

    # Return what is asked for, and the descriptors.
    def receive
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE
      wait(deadline)
      text, _, _, *control = @connection.recvmsg(REQUEST, scm_rights: true)
      files = control.flat_map(&:unix_rights)
      # Whoever wanted to start a run does not any more; Ruby 3.3 says so by nil.
      exit!(0) if text.nil? || text.empty?
      length, text = text.split("\n", 2)
      length = Integer(length, 10)
      raise IOError, 'too long' if length > REQUEST

      while text.bytesize < length
        wait(deadline)
        text << @connection.readpartial(length - text.bytesize)
      end
      [JSON.parse(text), *files]
    end

    def wait(deadline)
      left = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
      raise IOError, 'too late' unless left.positive? && @connection.wait_readable(left)
    end

    # Return why this run is not for a warm start; `nil` if it is.
    def refusal(request)
      argv = request.fetch('argv')
      return "its Puppet is #{argv.first}, the fork server's #{@command}" unless argv.first == @command
      return "its Puppet is #{request.fetch('version')}" unless request.fetch('version') == Puppet.version
      return 'its puppet.facter_conf is another than when the agent started' unless request['facter'] == FACTER
      return 'Ruby is to warn or to debug' if $VERBOSE || $DEBUG

      name = (request.fetch('env').keys | ENV.keys).grep(SAME).find { |key| request['env'][key] != ENV.fetch(key, nil) }
      return "its environment has another #{name} than the fork server" if name

      modules = argv[argv.index('--modulepath') + 1].split(':')
      libraries = modules.flat_map { |directory| Dir.glob('*/lib', base: directory).map { |lib| File.join(directory, lib) } }
      file = @library.overridden([*libraries, request.fetch('libdir')])
      "#{file} takes the place of Puppet's own" if file
    end

    def become(request, output, lock)
      Process.setpgrp
      Dir.chdir(request.fetch('cwd'))
      File.umask(request.fetch('umask'))
      ENV.replace(request.fetch('env'))
      ARGV.replace(request.fetch('argv').drop(1))
      Process.setproctitle([RbConfig.ruby, *request.fetch('argv')].join(' '))
      $stdin.reopen(File::NULL, 'r')
      [$stdout, $stderr].each { |stream| stream.reopen(output) }
      $stderr.sync = true
      output.close
      # The lock is this process's for as long as it lives, and nobody's whom it starts.
      LocalpuppetForkServer.const_set(:LOCK, lock)
      LocalpuppetCompiledRuby.forked
    end

    def tell_at_exit
      process = Process.pid
      at_exit do
        code = case $!
               when nil then 0
               when SystemExit then $!.status
               when SignalException then nil
               else 1
               end
        @connection.write("exiting #{code}\n") if code && Process.pid == process
      rescue SystemCallError
        nil # nobody supervises this run any more
      end
    end
  end

  # The server.
  class Server
    # `limits`: after how many runs and seconds it ends, and beyond how many bytes; launching.py
    def initialize(path, command, pack, limits)
      @command = command
      @limits = limits
      @library = Library.new(pack)
      @runs = 0
      @end = Process.clock_gettime(Process::CLOCK_MONOTONIC) + limits.fetch('seconds')
      File.unlink(path) if File.socket?(path)
      File.umask(0o177)
      @listener = UNIXServer.new(path)
    end

    # Serve one run after another. Returns in a child, as that run; the server itself ends.
    def serve
      loop do
        left = @end - Process.clock_gettime(Process::CLOCK_MONOTONIC)
        ready, = IO.select([@listener, $stdin], nil, nil, [left, 0].max)
        exit!(RECYCLE) if ready.nil? # too old
        exit!(0) if ready.include?($stdin) # there is no agent any more
        connection = @listener.accept
        next connection.close unless connection.getpeereid.first == Process.euid

        return if answer(connection) == :child
      end
    end

    private

    def answer(connection)
      file = @library.changed
      retire(connection, "#{file} has changed since the fork server read it") if file
      child = fork
      if child.nil?
        @listener.close
        Run.new(connection, @library, @command).take
        return :child
      end
      tell(connection, Process.wait2(child).last)
    rescue Errno::EAGAIN, Errno::ENOMEM
      retire(connection, 'there is no process to be had')
    end

    def tell(connection, status)
      say(connection, status.signaled? ? "killed #{status.termsig}" : "exited #{status.exitstatus}")
      @runs += 1
      # What a run has changed, this server may have been made of.
      exit!(RECYCLE) unless status.success? && @runs < @limits['runs'] && memory < @limits['memory']
    end

    def retire(connection, reason)
      say(connection, "cold #{reason}")
      exit!(RECYCLE)
    end

    def say(connection, word)
      connection.write("#{word}\n")
      connection.close
    rescue SystemCallError
      nil # its supervisor was killed
    end

    def memory
      File.read('/proc/self/statm').split[1].to_i * 4096
    end
  end

  # Read the library, and serve; returns in the process of a run.
  def self.start(path, command, pack, limits)
    politely do
      read_library
      4.times { GC.start } # what is old now is not looked at again by the children
    end
    Server.new(path, command, pack, limits).serve
  end

  # Do something that a run beside it must not feel, where we may take our priority back.
  def self.politely
    before = Process.getpriority(Process::PRIO_PROCESS, 0)
    Process.setpriority(Process::PRIO_PROCESS, 0, 19) if Process.euid.zero?
    yield
    Process.setpriority(Process::PRIO_PROCESS, 0, before)
  end
end

LocalpuppetForkServer.start(*JSON.parse(ENV.delete('LOCALPUPPET_FORK_SERVER')))
