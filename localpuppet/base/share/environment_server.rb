# frozen_string_literal: true

require_relative 'warm_environment'

# The environment server: a child of the fork server that has read the code of one release, and forks
# the children of its runs. Both are connected; the fork server sends it connections of supervisors,
# and it replies
#
#   ready                      once it has read the code
#   stale                      a file has changed: it ends, and the fork server forks the child
#   taken                      it has forked a child, and then, at the child's end:
#   exited CODE | killed SIGNAL
module LocalpuppetForkServer
  # The environment server, as the fork server sees it.
  class EnvironmentServer
    # Raised if it was killed while it had a connection: perhaps it forked a child.
    class Lost < StandardError; end

    # `served`: see Server
    def initialize(served)
      @served = served
      @stamp = nil
    end

    # Start another environment server if a run has left other names; the block closes what only the
    # fork server has. Returns :child in a run.
    def renew
      file = @served.last
      stamp = LocalpuppetWarmEnvironment.stamps([file]).first
      return if stamp == @stamp

      stop
      @stamp = stamp
      names = LocalpuppetWarmEnvironment::Names.read(file)
      return if names.nil?

      @key = names['key']
      @ready = false
      @socket, theirs = UNIXSocket.pair
      @pid = fork
      return theirs.close unless @pid.nil?

      leave
      yield
      serve(names, theirs)
    end

    # Make it fork the child of a run; return how that ended, `nil` if it forks none.
    def run(connection, key)
      return unless @socket && key == @key && ready?

      @socket.send_io(connection)
      answer = @socket.gets
      if answer == "stale\n"
        stop
        return @stamp = nil # the next one reads the changed files
      end
      raise Lost unless answer == "taken\n"

      connection.close
      @socket.gets&.chomp || 'lost' # the run's child reports its end itself
    rescue SystemCallError
      raise Lost
    end

    # Close the connection to it, in a process that does not need it.
    def leave
      @socket&.close
      @socket = nil
    end

    # End it, if there is one. It has no child now, so it is killed: at its low priority, it may take
    # long to read its code, and the next run would wait for that.
    def stop
      return unless @socket

      leave
      Process.kill(:KILL, @pid)
      Process.wait(@pid)
    end

    # Return its resident memory in bytes.
    def memory
      @socket ? File.read("/proc/#{@pid}/statm").split[1].to_i * 4096 : 0
    rescue SystemCallError
      0
    end

    private

    def ready?
      return true if @ready
      return false unless @socket.wait_readable(0)

      @ready = @socket.gets == "ready\n"
      stop unless @ready # it cannot read this code
      @ready
    end

    # In the environment server: read the code, and fork. Returns :child in a run.
    def serve(names, socket)
      environment = LocalpuppetWarmEnvironment::Environment.new(names, @served.first.roots)
      LocalpuppetForkServer.politely do
        environment.read(names)
        4.times { GC.start } # see LocalpuppetForkServer.start
      end
      command = LocalpuppetForkServer.rename('environment')
      socket.puts('ready')
      loop do
        connection = socket.recv_io(UNIXSocket)
        if environment.changed?
          socket.puts('stale')
          exit!(0)
        end
        return :child if answer(connection, environment, socket, command) == :child
      end
    rescue IOError, SystemCallError, SocketError
      exit!(0) # the fork server has ended
    rescue StandardError, ScriptError => e
      warn "localpuppet: runs read their code themselves: #{e.message}"
      exit!(0)
    end

    def answer(connection, environment, socket, command)
      child = fork
      if child.nil?
        socket.close
        LocalpuppetForkServer.rename(command)
        Run.new(connection, @served, environment).take
        return :child
      end
      socket.puts('taken')
      ended = LocalpuppetForkServer.ended(Process.wait2(child).last)
      LocalpuppetForkServer.say(connection, ended)
      socket.puts(ended)
    end
  end
end
