# frozen_string_literal: true

require_relative 'agent'
require_relative 'noted'
require_relative 'sent'

module PuppetX
  module Localpuppet
    # Kicks: triggers to whichever nodes have a role, or are found by a query.
    #
    # Who that is the agent finds out, and the agent sends: those of a run when the run is over. What
    # a catalog kicks is noted for the inventory, so that `localpuppet kicks` sees it before it happens.
    module Kicks
      # A node without an agent reads the whole inventory from the bus first.
      PATIENCE = 60
      LIMIT = 16 * 1024 * 1024
      FILE = 'kicks.jsonl'
      NOTICE = %r{\Akick ->(.*)\z}m

      # @param log What has `notice`: a resource, or Puppet itself
      # @param kick [Hash] `name`, `roles` or `query`, `tags`, `ttl`
      # @raise [Puppet::Error] one line: nobody could be asked, or it could not be sent
      def self.kick(log, kick, patience: PATIENCE)
        answer = Agent.call('kick', kick.merge('run' => Agent.run), patience: patience, limit: LIMIT)
        receivers = [answer['receivers']].flatten.compact
        return log.notice('no other node is found, so nobody is kicked') if receivers.empty?

        sent = Sent.to(log, receivers, answer)
        return if sent.empty?

        log.notice(Program.line("kicks #{sent.join(', ')}") + (answer['held'] ? ' after this run' : ''))
      end

      # Write down what this catalog kicks.
      # @param kick [Hash] `roles` and `query`
      def self.note(kick)
        Noted.note(FILE, 'a kick', kick)
      end

      # @param title [String] the title of a Notify
      # @return [Array<String>] the roles in "kick -> haproxy, web"; empty where it is something else
      def self.roles(title)
        title.to_s[NOTICE, 1].to_s.split(',').map(&:strip).reject(&:empty?)
      end
    end
  end
end
