# frozen_string_literal: true

require 'json'
require_relative 'program'

module PuppetX
  module Localpuppet
    # Puppet's client of the bus: a question and an answer, one line of JSON each.
    #
    # The agent of this node answers on its UNIX socket; without an agent, `localpuppet call`
    # answers the same line. Both know the engine of the bus, keys, signatures and leases; this
    # class does not.
    #
    # Every call ends within its patience. A question is sent once: if the connection breaks
    # afterwards, this is an error without a retry, because the agent may have acted on the
    # question. An answer is `ok` with its fields, or an error of one line; no answer is an error.
    class Agent
      # No valid answer: the result of the question is unknown.
      class Error < Puppet::Error; end
      # The agent rejected the question, with a reason.
      class Refused < Error; end

      SOCKET = '/run/localpuppet/agent.sock'
      PATIENCE = 10
      LIMIT = 1024 * 1024

      # @param verb [String] the verb: trigger, leader, lock, unlock, query
      # @param fields [Hash] the rest of the question
      # @param patience [Numeric] maximum seconds to wait for the answer
      # @param limit [Integer] maximum bytes of the answer
      # @return [Hash] the answer
      # @raise [Error] one line: what, where, what to do
      def self.call(verb, fields, patience: PATIENCE, limit: LIMIT)
        new(ENV, limit).call(verb, fields, patience)
      end

      # The id of this Puppet run, for the agent's records; nil without a supervisor.
      def self.run
        ENV.fetch('LOCALPUPPET_RUN', nil)
      end

      def initialize(env, limit = LIMIT)
        @limit = limit
        @root = env.fetch('LOCALPUPPET_ROOT', nil)
        # SOCKET is for the default root: its agent must not answer for another root.
        @socket = env.fetch('LOCALPUPPET_SOCKET') { @root ? nil : SOCKET }
        @command = env.fetch('LOCALPUPPET_COMMAND', 'localpuppet')
      end

      def call(verb, fields, patience)
        question = "#{JSON.generate({ 'verb' => verb }.merge(fields))}\n"
        # The backend of sealed values is loaded only if a run opens one.
        raise Error, "#{verb}: has a sealed value, which other nodes would see" if defined?(Sealed) && Sealed.in?(question)

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

      # @return [Socket, nil] nil if no agent listens, or the socket is unknown
      def connect(deadline, patience)
        return if @socket.nil?

        require 'socket' # 3 ms that a run without questions does not pay
        address = Socket.sockaddr_un(@socket)
        socket = Socket.new(:UNIX, :STREAM)
        begin
          socket.connect_nonblock(address)
        rescue IO::WaitWritable, Errno::EAGAIN
          # The accept queue is full, and there is no event to wait for.
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

      # The variables that make the executable use the supervisor's root and run.
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
        problem = 'the answer has an unknown form'
        problem = 'the connection was closed without an answer' if line.scrub.strip.empty?
        raise Error, "#{where}: #{problem} (do the agent and the Puppet modules have one version?)"
      end
    end
  end
end
