# frozen_string_literal: true

# Compiles the catalogs of one release, each in a separate process: see localpuppet/node/preview.
#
# This process loads Puppet, and executes nothing of the release. It reads requests from its standard
# input, a socket, and writes a result for each, in any order:
#
#   {"id": 1, "node": …}                         one line of JSON
#   {"id": 1, "bytes": 5120} and 5120 bytes      the result; without bytes, with "failed": REASON
#
# A child has no descriptor but its pipe to this process; what it prints is discarded.
require 'json'
require 'socket'

module LocalpuppetPreview
  # The processes of compiles.
  class Server
    # Seconds that a child has to exit after its result, and between two looks.
    PATIENCE = 1.0
    PAUSE = 0.002
    # Seconds between two looks at what compiles use, and looks that may find what no compile started.
    TICK = 0.05
    SWEEPS = 2500
    # Pages of Ruby's heap, 16 KiB each, that a compile takes before Ruby collects garbage.
    PAGES = 1200
    # Bytes of what a compile lacked.
    WISHES = 8 * 1024 * 1024

    def initialize(channel, setup)
      @channel = channel
      @setup = setup
      @limits = setup['limits']
      @waiting = []
      @children = {}
      @input = +''
      @open = true
      @lock = Mutex.new
    end

    def serve
      # Its own thread looks whatever this one is waiting for.
      Thread.new { loop { sleep(TICK); @lock.synchronize { look unless @children.empty? } } } if @setup['isolated']
      while @open || !@waiting.empty? || !@children.empty?
        start(@waiting.shift) while !@waiting.empty? && @children.size < @limits['processes']
        turn
      end
    end

    private

    def turn
      inputs = @children.keys
      inputs << @channel if @open
      ready, = IO.select(inputs, nil, nil, patience)
      (ready || []).each { |io| io.equal?(@channel) ? listen : receive(io) }
      late = @children.select { |_, child| child[:deadline] <= now }.keys
      late.each { |pipe| finish(pipe, "did not end within #{@limits['seconds']} s") }
    end

    def patience
      [@children.values.map { |child| child[:deadline] - now }.min || 3600, 0].max
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def listen
      @input << @channel.readpartial(1_048_576)
      while (line = @input.slice!(/\A[^\n]*\n/))
        @waiting << JSON.parse(line)
      end
    rescue EOFError, SystemCallError
      exit!(0) # the engine has ended
    end

    def start(request)
      reader, writer = IO.pipe(binmode: true)
      @lock.synchronize do
        pid = fork { child(request, writer) }
        @children[reader] = { id: request['id'], pid: pid, data: +'', deadline: now + @limits['seconds'], learn: request['more'] }
      end
      writer.close
    end

    def child(request, writer)
      Process.setsid
      @channel.close
      @children.each_key(&:close)
      { DATA: 'memory', FSIZE: 'file', CPU: 'seconds', NOFILE: 'descriptors' }.each do |name, limit|
        Process.setrlimit(name, @limits[limit])
      end
      # Tables of pages need memory, too. The kernel counts the programs of all compiles.
      Process.setrlimit(:AS, 4 * @limits['memory'])
      Process.setrlimit(:NPROC, @limits['programs'] * (@limits['processes'] + 1)) if @setup['isolated']
      Process.setrlimit(:CORE, 0)
      Process.setpriority(Process::PRIO_PROCESS, 0, 10) # this process's own thread has to count
      [$stdin, $stdout, $stderr].each { |stream| stream.reopen(File::NULL, 'r+') }
      collect_late
      result = JSON.generate(Compile.new(request, @setup).result)
      writer.write("#{JSON.generate(Memo.lacking)}\n", result, "\n")
      writer.close
      exit!(0)
    end

    # Let Ruby collect garbage only after a compile has taken some memory; most end before that.
    def collect_late
      GC.disable
      most = GC.stat(:heap_allocated_pages) + PAGES
      Thread.new do
        sleep(0.05) while GC.stat(:heap_allocated_pages) < most
        GC.enable
      end
    end

    def receive(pipe)
      child = @children.fetch(pipe)
      child[:data] << pipe.readpartial(1_048_576)
      return finish(pipe, "has more than #{@limits['result']} bytes") if child[:data].bytesize > @limits['result']

      # A program that the compile left may keep the pipe open.
      finish(pipe, nil) if child[:data].end_with?("\n") && child[:data].count("\n") == 2
    rescue EOFError
      finish(pipe, nil)
    end

    # `reason`: why the child must be ended
    def finish(pipe, reason)
      child = @children.fetch(pipe)
      pipe.close
      status = reap(child[:pid], reason ? 0 : PATIENCE)
      @lock.synchronize { @children.delete(pipe) }
      sweep if @setup['isolated']
      learn, result, rest = child[:data].split("\n", 3)
      reason ||= child[:over] || ended(status) unless rest
      return reply(child[:id], reason) if reason

      @channel.write("#{JSON.generate(id: child[:id], bytes: result.bytesize)}\n", result)
      wishes(learn).each { |kind, path| Memo.learn(kind, path) } if child[:learn]
    end

    # What a compile lacked; the release may have written it.
    def wishes(text)
      value = text.bytesize > WISHES ? [] : JSON.parse(text)
      value.is_a?(Array) ? value.first(Memo::FILES + Reads::PLACES) : []
    rescue JSON::ParserError
      []
    end

    def reply(id, reason)
      @channel.write("#{JSON.generate(id: id, failed: reason)}\n")
    end

    def ended(status)
      return 'ended without a result' unless status.signaled?

      "was ended by #{Signal.signame(status.termsig)}; is it over a limit of time or memory?"
    end

    # End a child and what it started: its session, and in a namespace of processes what it left.
    def reap(pid, patience)
      _, status = Process.wait2(pid, Process::WNOHANG)
      (patience / PAUSE).ceil.times do
        break if status

        sleep(PAUSE)
        _, status = Process.wait2(pid, Process::WNOHANG)
      end
      Process.kill(:KILL, pid) unless status
      _, status = Process.wait2(pid) unless status
      begin
        Process.kill(:KILL, -pid)
      rescue Errno::ESRCH
        nil # there is nothing left
      end
      status
    end

    # End compiles that are over a limit, and what lost its parent; return what that was.
    def look
      table = Programs.table
      strays = table.keys - [1, Process.ppid, Process.pid]
      @children.each_value do |child|
        family = Programs.family(child[:pid], table)
        child[:over] ||= over(table.values_at(*family))
        Programs.kill(family, reap: false) if child[:over]
        strays -= family
      end
      Programs.kill(strays, reap: true)
      strays
    end

    def over(programs)
      return "has more than #{@limits['memory']} bytes of memory" if programs.sum { |one| one[:memory] } > @limits['memory']

      "has more than #{@limits['programs']} programs" if programs.sum { |one| one[:threads] } > @limits['programs']
    end

    # End what a compile left. Programs that are faster than this end with this process.
    def sweep
      SWEEPS.times do
        return if @lock.synchronize { look }.empty?

        sleep(PAUSE)
      end
      exit!(1)
    end
  end

  # The programs in this namespace.
  module Programs
    FIELDS = /^(PPid|Threads|RssAnon|RssShmem|VmPTE|VmSwap):\s*(\d+)/.freeze

    # Return pid => parent, threads, bytes of memory. An ended program that this one does not wait for
    # is left out.
    def self.table
      Dir.children('/proc').grep(/\A\d+\z/).to_h do |name|
        fields = fields("/proc/#{name}")
        # The first thread has ended, and others have the memory.
        Dir["/proc/#{name}/task/*"].each { |thread| fields = fields(thread).merge(fields) } unless fields['VmPTE']
        next [0, nil] unless fields['VmPTE'] || fields['PPid'] == Process.pid

        memory = fields.values_at('RssAnon', 'RssShmem', 'VmPTE', 'VmSwap').compact.sum * 1024
        [name.to_i, { parent: fields['PPid'], threads: fields['Threads'], memory: memory }]
      rescue SystemCallError
        [0, nil]
      end.compact
    end

    def self.fields(place)
      File.read("#{place}/status").scan(FIELDS).to_h.transform_values(&:to_i)
    end

    # Return a program of the table and all that it started; what lost its parent is not in it.
    def self.family(pid, table)
      family = table.key?(pid) ? [pid] : []
      family.each { |parent| family.concat(table.keys.select { |one| table[one][:parent] == parent }) }
    end

    # Kill programs; `reap`: wait for those that are this process's children.
    def self.kill(pids, reap:)
      pids.each do |pid|
        Process.kill(:KILL, pid)
        Process.wait(pid, Process::WNOHANG) if reap
      rescue Errno::ESRCH, Errno::ECHILD
        nil
      end
    end

    # No compile reads or writes the memory of this process, or that of another compile.
    def self.lock
      require 'fiddle'
      control = Fiddle::Function.new(Fiddle::Handle::DEFAULT['prctl'], [Fiddle::TYPE_INT, Fiddle::TYPE_LONG], Fiddle::TYPE_INT)
      control.call(4, 0) # PR_SET_DUMPABLE
    end
  end

  # Prepares this process.
  module Start
    def self.run
      copy = $stdin.dup # no child inherits it
      copy.autoclose = false
      channel = UNIXSocket.for_fd(copy.fileno)
      $stdin.reopen(File::NULL)
      setup = JSON.parse(channel.gets("\n", 4 * 1024 * 1024))
      %w[INT TERM HUP QUIT USR1 USR2 ALRM PIPE].each { |name| trap(name, 'IGNORE') } if Process.pid == 1
      Programs.lock if setup['isolated']
      load_puppet(setup)
      # What it learns is bounded as a compile is.
      Process.setrlimit(:DATA, setup['limits']['memory'])
      channel.write("#{JSON.generate(ready: Puppet.version, ruby: RUBY_VERSION, unknown: setup['unknown'])}\n")
      Server.new(channel, setup).serve
    end

    def self.load_puppet(setup)
      require 'puppet'
      require 'puppet/util/command_line'
      require 'puppet/application_support'
      require 'puppet/indirector/catalog/compiler'
      require 'facter'
      Puppet::Util::RunMode.prepend(SystemDirectories)
      Puppet::Settings.prepend(NoDirectories)
      Puppet.initialize_settings(setup['arguments'])
      $LOAD_PATH.delete(Puppet[:libdir]) # an agent's copies of modules: the release has its own
      Puppet::Util::Log.close_all
      Puppet::Util::Log.level = :crit
      require File.join(setup['own'], 'localpuppet/lib/puppet_x/localpuppet/catalogs')
      require File.join(setup['own'], 'localpuppet/lib/puppet_x/localpuppet/inventory')
      require File.join(setup['own'], 'localpuppet/lib/puppet/indirector/resource/localpuppet')
      require_relative 'compile'
      require_relative 'warm'
      setup['unknown'] = PuppetHooks.unknown
      Reads.configure(setup['roots'], system_directories(setup), settings_directories)
      Warm.up(setup)
      unless setup['asks']
        Puppet::Resource.indirection.terminus_class = :localpuppet
        PuppetX::Localpuppet::Inventory.singleton_class.prepend(PuppetHooks::Queries)
        PuppetX::Localpuppet::Agent.singleton_class.prepend(PuppetHooks::NoAgent)
      end
      FacterHooks.install
      PuppetHooks.install unless setup['unknown']
      4.times { GC.start } # objects are now old: the children's collector skips them
    end

    # Ruby, Puppet and localpuppet: their versions are part of each cached catalog's key.
    def self.system_directories(setup)
      ruby = RbConfig::CONFIG.values_at('rubylibdir', 'rubyarchdir', 'vendordir', 'sitedir', 'rubylibprefix')
      gems = defined?(Gem) ? Gem.path + Gem::Specification.dirs : []
      [*ruby, *gems, *settings_directories, *$LOAD_PATH.map(&:to_s), __dir__, *setup['system'], '/dev', '/nonexistent', '/opt/puppetlabs']
        .map { |path| File.expand_path(path) }.uniq
    end

    # They may have keys of Hiera's backends.
    def self.settings_directories
      %i[confdir vardir libdir plugindest codedir statedir rundir logdir].map { |name| File.expand_path(Puppet[name].to_s) }
    end

    # Puppet creates the parents of its directories; here, it writes nothing.
    module NoDirectories
      private

      def create_ancestors(_directory); end
    end

    # The directories of root, whichever user compiles.
    module SystemDirectories
      private

      def which_dir(system, _user)
        system
      end
    end
  end
end

LocalpuppetPreview::Start.run
exit!(0)
