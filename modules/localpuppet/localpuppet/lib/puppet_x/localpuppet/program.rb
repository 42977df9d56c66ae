# frozen_string_literal: true

require 'tempfile'

module PuppetX
  module Localpuppet
    # Runs one program to its end: argument vector, no shell, a clean environment, a deadline.
    #
    # Standard input, output and error are unnamed files, so that no pipe must be drained, and a
    # daemon that inherits the output cannot delay the end. If the wait ends before the program does
    # (deadline, signal, error), its whole process group is killed.
    module Program
      class Error < StandardError; end

      Done = Struct.new(:status, :out, :err)

      # Maximum bytes to read of an output.
      LIMIT = 1024 * 1024
      # The variables that a program inherits. RUBYOPT, GEM_* and PYTHON* are excluded on purpose.
      KEPT = ['HOME', 'LOGNAME', 'PATH', 'SSH_AUTH_SOCK', 'TMPDIR', 'TZ', 'USER'].freeze
      PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

      # @param argv [Array<String>] program and arguments
      # @param timeout [Numeric] maximum seconds
      # @param input [String] its standard input
      # @param env [Hash] variables to add to those in KEPT
      # @param limit [Integer] maximum bytes to read of an output
      # @return [Done] its status and the first `limit` bytes of its outputs
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

      # Returns another program's text as one line: no control or direction characters, limited
      # length.
      def self.line(text, limit: 500)
        text = text.to_s.dup.force_encoding(Encoding::UTF_8).scrub('?')
        text = text.strip.gsub(%r{[\p{Cntrl}\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+}, ' ')
        (text.length > limit) ? "#{text[0, limit]}…" : text
      end

      # Returns how a failed program ended, with the first line of its errors, or else of its
      # output.
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
        # The two-element form never uses a shell, whatever the name.
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
