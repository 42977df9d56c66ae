# frozen_string_literal: true

require 'json'
require_relative 'program'

module PuppetX
  module Localpuppet
    # The one door from Puppet to the bus: a question and an answer, one line of JSON each.
    #
    # The agent of this node answers on its UNIX socket; where nobody listens, `localpuppet call`
    # answers the same line. Which engine the bus has, keys, signatures, leases: all that is theirs.
    #
    # Invariants: every call ends within its patience. A question is asked once: when the connection
    # breaks after that, it is an error and not asked again, because it may have been acted on. An
    # answer is `ok` with its fields, or an error of one line; silence is an error.
    class Agent
      # No answer, or none that can be understood: what became of the question is unknown.
      class Error < Puppet::Error; end
      # The agent's own "no", with its reason.
      class Refused < Error; end

      SOCKET = '/run/localpuppet/agent.sock'
      PATIENCE = 10
      LIMIT = 1024 * 1024

      # @param verb [String] what is asked: trigger, leader, lock, unlock, query
      # @param fields [Hash] the rest of the question
      # @param patience [Numeric] seconds until an answer must have come
      # @param limit [Integer] the most bytes that an answer may have
      # @return [Hash] the answer
      # @raise [Error] one line: what, where, what to do
      def self.call(verb, fields, patience: PATIENCE, limit: LIMIT)
        new(ENV, limit).call(verb, fields, patience)
      end

      # The run that this Puppet is, for the agent's records; nil where no supervisor started it.
      def self.run
        ENV.fetch('LOCALPUPPET_RUN', nil)
      end

      def initialize(env, limit = LIMIT)
        @limit = limit
        @root = env.fetch('LOCALPUPPET_ROOT', nil)
        # SOCKET is the default root's: its agent must not answer for another root.
        @socket = env.fetch('LOCALPUPPET_SOCKET') { @root ? nil : SOCKET }
        @command = env.fetch('LOCALPUPPET_COMMAND', 'localpuppet')
      end

      def call(verb, fields, patience)
        question = "#{JSON.generate({ 'verb' => verb }.merge(fields))}\n"
        deadline = now + patience
        connection = connect(deadline, patience)
        return answer(@socket, exchange(connection, question, deadline, patience)) if connection

        answer(@command, ask_program(question, patience))
      ensure
        connection&.close
      end

      private

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      # @return [Socket, nil] nil where no agent listens, or the socket is unknown
      def connect(deadline, patience)
        return if @socket.nil?

        require 'socket' # 3 ms that a run without questions does not pay
        address = Socket.sockaddr_un(@socket)
        socket = Socket.new(:UNIX, :STREAM)
        begin
          socket.connect_nonblock(address)
        rescue IO::WaitWritable, Errno::EAGAIN
          # The queue of those who wait to be accepted is full; there is no event to wait for.
          hung(patience) if now >= deadline
          sleep 0.01
          retry
        end
        socket
      rescue Errno::ENOENT, Errno::ECONNREFUSED
        socket&.close
        nil
      rescue SystemCallError, ArgumentError => e
        socket&.close
        reason = e.is_a?(SystemCallError) ? e.class.new.message : e.message
        raise Error, "#{@socket}: #{Program.line(reason)} (run Puppet as the agent's user, or set LOCALPUPPET_SOCKET)"
      end

      def exchange(socket, question, deadline, patience)
        until question.empty?
          written = socket.write_nonblock(question, exception: false)
          written.is_a?(Integer) ? question = question.byteslice(written..) : wait(deadline, patience, writer: socket)
        end
        line = +''
        until line.end_with?("\n")
          part = socket.read_nonblock(65_536, exception: false)
          break if part.nil?

          part.is_a?(String) ? line << part : wait(deadline, patience, reader: socket)
          raise Error, "#{@socket}: an answer of more than #{@limit} bytes" if line.bytesize > @limit
          hung(patience) if now >= deadline
        end
        line
      rescue SystemCallError => e
        raise Error, "#{@socket}: the connection broke: #{e.class.new.message} (see the agent's log)"
      end

      def wait(deadline, patience, reader: nil, writer: nil)
        left = deadline - now
        ready = left.positive? && IO.select([reader].compact, [writer].compact, nil, left)
        hung(patience) unless ready
      end

      def hung(patience)
        raise Error, "#{@socket}: the agent did not answer within #{patience} s (see its log; is it overloaded?)"
      end

      def ask_program(question, patience)
        program = words
        root = @root ? ['--root', @root] : []
        done = Program.run([*program, *root, 'call'], timeout: patience, input: question, env: own, limit: @limit)
        return done.out unless done.out.strip.empty?

        raise Error, "#{@command}: no answer, #{Program.complaint(done)} (#{no_agent})"
      rescue Program::Error => e
        raise Error, "#{@command}: #{e.message}, and #{no_agent} (start the agent, or put localpuppet on the PATH)"
      end

      def no_agent
        @socket ? "no agent listens on #{@socket}" : 'LOCALPUPPET_SOCKET is not set'
      end

      def words
        require 'shellwords'
        program = Shellwords.split(@command)
        raise Error, 'LOCALPUPPET_COMMAND: is empty' if program.empty?

        program
      rescue ArgumentError
        raise Error, 'LOCALPUPPET_COMMAND: has a quote without its other half'
      end

      # What the executable needs of our environment to be the one that the supervisor meant.
      def own
        ENV.to_h.slice('LOCALPUPPET_ROOT', 'LOCALPUPPET_RUN')
      end

      def answer(where, line)
        line = line.dup.force_encoding(Encoding::UTF_8)
        raise JSON::ParserError unless line.valid_encoding?

        value = JSON.parse(line)
        raise JSON::ParserError unless value.is_a?(Hash) && [true, false].include?(value['ok'])
        return value if value['ok']

        raise Refused, Program.line(value['error'] || "#{where}: refused without a reason")
      rescue JSON::ParserError
        said = line.scrub.strip.empty? ? 'the connection was closed without an answer' : 'the answer is not what we know'
        raise Error, "#{where}: #{said} (do the agent and the Puppet modules have one version?)"
      end
    end
  end
end
