# frozen_string_literal: true

require 'json'
require 'set'
require 'socket'
require_relative 'compiled_ruby'

# A Puppet that has loaded its library, and forks for each run: Ruby loads this after lean_start.rb
# in a `puppet apply` that the agent has started (docs/adr/0035-fork-server.md).
#
# The server has no settings, modules or data of a run: the child loads those. The server accepts a
# connection, checks the peer's user, receives the key of an environment (or an empty line), and
# forks, or makes the environment server fork (warm_environment.rb); the child sends
#
#   hello PID                       and receives, in one message with the descriptors of the output,
#                                   of the node's lock and perhaps of the socket of sealed values,
#                                   LENGTH\n and LENGTH bytes of JSON
#   cold REASON | begun             it declines a warm start and exits; or it continues as Puppet
#   exiting CODE                    it exits; in case the server dies before it can report that
#
# At the end, the server sends
#
#   exited CODE | killed SIGNAL     or, without a child: cold REASON
module LocalpuppetForkServer
  # Exit code that requests a new server; also in fleet/agent/fork_server_keeper.py.
  RECYCLE = 10
  # Seconds until a child must have its request, and the maximum bytes of the request.
  PATIENCE = 10
  # Seconds until a client that has connected must have sent a line.
  GREETING = 2
  REQUEST = 4 * 1024 * 1024
  # Variables that Ruby or Puppet read while loading: another value needs another server.
  SAME = /\A(?:RUBY|GEM_|BUNDLE|LANG|LC_|AUGEAS|TZ\z|HOME\z|PATH\z)/
  # Files that Facter (the operating system) and the C library (the time zone) read once.
  SYSTEM = ['/etc/os-release', '/usr/lib/os-release', '/etc/localtime'].freeze

  # Libraries that Puppet and Facter ask for in each run, and that few machines have.
  RARE = %w[augeas ffi ldap sys/filesystem].freeze

  # The facter.conf and the cache directory of the node.
  FACTER = defined?(LocalpuppetFacterConf) ? [LocalpuppetFacterConf.file, LocalpuppetFacterConf.cache] : nil

  # Load what does not depend on a run. None of it reads Puppet's settings.
  def self.read_library
    require 'puppet/util/command_line'
    require 'puppet/application/apply'
    require 'puppet/configurer'
    require 'facter'
    # Puppet allows other implementations of Facter; Facter caches what it resolved.
    Facter::SessionCache.invalidate_all_caches if defined?(Facter::SessionCache)
    look_for_rare_libraries if defined?(Gem) && defined?(LocalpuppetLeanPatches)
    require_relative 'environment_server'
  end

  # RubyGems looks into each gem for a library that Ruby lacks, and remembers what it has found.
  def self.look_for_rare_libraries
    Gem.clear_paths if LocalpuppetLeanPatches.gems_changed?
    RARE.each { |library| Gem::Specification.find_by_path(library) }
  end

  # The files that the server was built from, and directories that may get new ones.
  class Library
    attr_reader :roots

    def initialize(pack)
      features = $LOADED_FEATURES.select { |path| path.start_with?('/') }
      libraries = File.foreach('/proc/self/maps', chomp: true).filter_map { |line| line[%r{ (/.*)}, 1] }
      gems = defined?(Gem) ? Gem::Specification.dirs : []
      @paths = [*features, *libraries, *gems, *SYSTEM, *Dir[File.join(__dir__, '*.rb')], facter_conf, pack].compact.uniq
      @stamps = stamps
      @roots = $LOADED_FEATURES.filter_map { |path| path[%r{\A(/.*)/(?:puppet|facter)\.rb\z}, 1] }.uniq
      @read = features.filter_map { |path| own_name(path) }.to_set
    end

    # Return a path that has changed since; `nil` for no change.
    def changed
      @paths.zip(@stamps, stamps).find { |_, before, now| before != now }&.first
    end

    # Return a file of a module, or of pluginsync, that replaces one that the server has loaded from
    # Puppet, or one of Puppet's types, providers, faces or applications.
    def overridden(directories)
      directories.each do |directory|
        Dir.glob('{puppet,facter}/**/*.rb', base: directory).each do |name|
          return File.join(directory, name) if @read.include?(name) || core?(name)
        end
      end
      nil
    end

    private

    # Return the configuration file that Facter read when it was loaded.
    def facter_conf
      reader = Facter::ConfigReader if defined?(Facter::ConfigReader)
      reader.send(:default_path) if reader.respond_to?(:default_path, true)
    end

    # Return the name by which `require` finds a file of Puppet or Facter; `nil` for others.
    def own_name(path)
      root = @roots.find { |one| path.start_with?("#{one}/") }
      path.delete_prefix("#{root}/") if root
    end

    # Return whether Puppet has a type, provider, face or application of that name. Functions do not
    # count: modules have some of the same names, and a run's own loaders select one.
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

  # A run, in a child process.
  class Run
    # `served`: the library, Puppet's command, the file of names; an environment or `nil`
    def initialize(connection, served, environment = nil)
      @connection = connection
      @library, @command, @names = served
      @environment = environment
    end

    # Become the requested Puppet; exit without a request, or if the run must start cold.
    def take
      @connection.write("hello #{Process.pid}\n")
      request, output, *kept = receive
      reason = refusal(request)
      if reason
        @connection.write("cold #{reason}\n")
        exit!(0)
      end
      become(request, output, kept)
      enter(request)
      @connection.write("begun\n")
      tell_at_exit
    rescue StandardError => e
      warn "localpuppet: a run was not begun: #{e.class}"
      exit!(1)
    end

    private

    # Return the request and the descriptors.
    def receive
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE
      wait(deadline)
      text, _, _, *control = @connection.recvmsg(REQUEST, scm_rights: true)
      files = control.flat_map(&:unix_rights)
      # The client has given up; Ruby 3.3 returns nil.
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

    # Return why this run cannot start warm; `nil` if it can.
    def refusal(request)
      argv = request.fetch('argv')
      return "its Puppet is #{argv.first}, the fork server's #{@command}" unless argv.first == @command
      return "its Puppet is #{request.fetch('version')}" unless request.fetch('version') == Puppet.version
      return 'its puppet.facter_conf is another than when the agent started' unless request['facter'] == FACTER
      return 'Ruby is to warn or to debug' if $VERBOSE || $DEBUG
      return 'its release is another than the environment has' unless @environment.nil? || @environment.serves?(request)

      name = (request.fetch('env').keys | ENV.keys).grep(SAME).find { |key| request['env'][key] != ENV.fetch(key, nil) }
      return "its environment has another #{name} than the fork server" if name

      modules = argv[argv.index('--modulepath') + 1].split(':')
      libraries = modules.flat_map { |directory| Dir.glob('*/lib', base: directory).map { |lib| File.join(directory, lib) } }
      file = @library.overridden([*libraries, request.fetch('libdir')])
      "#{file} takes the place of Puppet's own" if file
    end

    def become(request, output, kept)
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
      # This process keeps them while it lives: the lock, and perhaps the socket of sealed values. Its
      # children do not inherit them.
      LocalpuppetForkServer.const_set(:KEPT, kept)
      Object.const_set(:LOCALPUPPET_SEALED, kept[1].fileno) if kept[1]
      LocalpuppetCompiledRuby.forked
    end

    def enter(request)
      key = request.fetch('environment')
      return if key.empty?

      names = LocalpuppetWarmEnvironment::Names.new(@names, key, LocalpuppetWarmEnvironment.roots(request))
      LocalpuppetWarmEnvironment.enter(@environment, names)
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
        nil # the supervisor is gone
      end
    end
  end

  # Reports the end of a run to its supervisor.
  def self.say(connection, word)
    connection.write("#{word}\n")
    connection.close
  rescue SystemCallError
    nil # its supervisor was killed
  end

  # Set this process's name in lists of processes; return the one before.
  def self.rename(name)
    before = File.read('/proc/self/comm').chomp
    File.write('/proc/self/comm', name)
    before
  rescue SystemCallError
    'ruby'
  end

  def self.ended(status)
    status.signaled? ? "killed #{status.termsig}" : "exited #{status.exitstatus}"
  end

  # The server.
  class Server
    # `served`: the library, Puppet's command, the file of names
    # `limits`: maximum runs, seconds and bytes of memory; launching.py sets them
    def initialize(path, served, limits)
      @served = served
      @limits = limits
      @runs = 0
      @end = Process.clock_gettime(Process::CLOCK_MONOTONIC) + limits.fetch('seconds')
      @environment = EnvironmentServer.new(served)
      File.unlink(path) if File.socket?(path)
      File.umask(0o177)
      @listener = UNIXServer.new(path)
    end

    # Serve one run after another. Returns in a child, as that run; the server itself exits.
    def serve
      loop do
        return if @environment.renew { @listener.close } == :child

        left = @end - Process.clock_gettime(Process::CLOCK_MONOTONIC)
        ready, = IO.select([@listener, $stdin], nil, nil, [left, 0].max)
        exit!(RECYCLE) if ready.nil? # too old
        exit!(0) if ready.include?($stdin) # the agent has ended
        connection = @listener.accept
        next connection.close unless connection.getpeereid.first == Process.euid && connection.wait_readable(GREETING)

        key = connection.recv(100).to_s # Ruby 3.3 returns nil at the end
        next connection.close if key.empty? # the client has given up

        return if answer(connection, key.chomp) == :child
      end
    end

    private

    def answer(connection, key)
      file = @served.first.changed
      retire(connection, "#{file} has changed since the fork server read it") if file
      ended = @environment.run(connection, key)
      return done(ended) if ended

      child = fork
      if child.nil?
        @listener.close
        @environment.leave
        Run.new(connection, @served).take
        return :child
      end
      ended = LocalpuppetForkServer.ended(Process.wait2(child).last)
      LocalpuppetForkServer.say(connection, ended)
      done(ended)
    rescue EnvironmentServer::Lost
      retire(connection, 'the environment server was killed')
    rescue Errno::EAGAIN, Errno::ENOMEM
      retire(connection, 'there is no process to be had')
    end

    def done(ended)
      @runs += 1
      # A failed run may have changed files that this server was built from.
      return if ended == 'exited 0' && @runs < @limits['runs'] && memory < @limits['memory']

      @environment.stop
      exit!(RECYCLE)
    end

    def retire(connection, reason)
      LocalpuppetForkServer.say(connection, "cold #{reason}")
      exit!(RECYCLE)
    end

    def memory
      [File.read('/proc/self/statm').split[1].to_i * 4096, @environment.memory].max
    end
  end

  # Load the library, and serve; returns in the process of a run.
  def self.start(path, command, pack, limits, names)
    politely do
      read_library
      4.times { GC.start }  # objects are now old: the children's collector skips them
    end
    Server.new(path, [Library.new(pack), command, names], limits).serve
  end

  # Run a block at low priority, if localpuppet may raise the priority again afterwards.
  def self.politely
    before = Process.getpriority(Process::PRIO_PROCESS, 0)
    Process.setpriority(Process::PRIO_PROCESS, 0, 19) if Process.euid.zero?
    yield
    Process.setpriority(Process::PRIO_PROCESS, 0, before)
  end
end

LocalpuppetForkServer.start(*JSON.parse(ENV.delete('LOCALPUPPET_FORK_SERVER')))
