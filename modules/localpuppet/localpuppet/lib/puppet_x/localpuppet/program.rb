# frozen_string_literal: true

require 'tempfile'

module PuppetX
  module Localpuppet
    # Runs one program to its end: argument vector, no shell, a clean environment, a deadline.
    #
    # It knows nothing of what the program is for. Standard input, output and error are unnamed
    # files, so that nothing has to be drained, and a daemon that the program leaves behind with our
    # output open cannot hold us up. When the wait ends before the program does (deadline, signal,
    # error), its whole process group is killed.
    module Program
      class Error < StandardError; end

      Done = Struct.new(:status, :out, :err)

      # The most that is read of an output.
      LIMIT = 1024 * 1024
      # What a program may see of our environment. RUBYOPT, GEM_* and PYTHON* are not there on purpose.
      KEPT = ['HOME', 'LOGNAME', 'PATH', 'SSH_AUTH_SOCK', 'TMPDIR', 'TZ', 'USER'].freeze
      PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

      # @param argv [Array<String>] program and arguments
      # @param timeout [Numeric] seconds that it may take
      # @param input [String] what it reads
      # @param env [Hash] what it sees of the environment, besides KEPT
      # @param limit [Integer] how much is read of an output
      # @return [Done] how it ended and the first `limit` bytes of what it said
      # @raise [Error] it could not be started, or did not end in time; without its name
      def self.run(argv, timeout:, input: '', env: {}, limit: LIMIT)
        files = Array.new(3) { Tempfile.create('localpuppet').tap { |file| File.unlink(file.path) } }
        files[0].write(input)
        files[0].rewind
        status = wait(start(argv, files, environment.merge(env)), timeout)
        Done.new(status, *files.drop(1).map { |file| content(file, limit) })
      ensure
        files&.each(&:close)
      end

      # One line of what somebody else said: no control or direction characters, not too long.
      def self.line(text, limit: 500)
        text = text.to_s.dup.force_encoding(Encoding::UTF_8).scrub('?')
        text = text.strip.gsub(%r{[\p{Cntrl}\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+}, ' ')
        (text.length > limit) ? "#{text[0, limit]}…" : text
      end

      # The first thing that a program said when it failed, its complaint before its output.
      def self.complaint(done)
        said = [done.err, done.out].map { |text| line(text.strip.lines.first) }.find { |text| !text.empty? }
        how = done.status.signaled? ? "killed by signal #{done.status.termsig}" : "exit code #{done.status.exitstatus}"
        said ? "#{how}: #{said}" : how
      end

      def self.environment
        { 'PATH' => PATH, 'LC_ALL' => 'C.UTF-8' }.merge(ENV.to_h.slice(*KEPT))
      end
      private_class_method :environment

      def self.start(argv, files, env)
        input, out, err = files
        # The two-element form never reaches a shell, whatever is in the name.
        Process.spawn(env, [argv.first, argv.first], *argv.drop(1),
                      in: input, out: out, err: err, chdir: '/', pgroup: true, unsetenv_others: true)
      rescue SystemCallError, ArgumentError => e
        reason = e.is_a?(SystemCallError) ? e.class.new.message : e.message
        raise Error, "cannot be run: #{line(reason)}"
      end
      private_class_method :start

      def self.wait(pid, timeout)
        watcher = Process.detach(pid)
        raise Error, "did not end within #{timeout} s" unless watcher.join(timeout)

        watcher.value
      ensure
        end_group(pid, watcher) if watcher&.alive?
      end
      private_class_method :wait

      def self.end_group(pid, watcher)
        Process.kill(:KILL, -pid)
      rescue Errno::ESRCH
        nil # it ended meanwhile
      ensure
        watcher.join
      end
      private_class_method :end_group

      def self.content(file, limit)
        file.rewind
        (file.read(limit) || +'').force_encoding(Encoding::UTF_8)
      end
      private_class_method :content
    end
  end
end
