# frozen_string_literal: true

require_relative 'agent'
require_relative 'noted'
require_relative 'sent'

module PuppetX
  module Localpuppet
    # Kicks: triggers to the nodes that have a role, or that a query finds.
    #
    # The agent finds the receivers and sends the triggers, at the end of the run. The kicks of a
    # catalog are recorded for the inventory, so that `localpuppet kicks` shows them in advance.
    module Kicks
      # Without an agent, the node first reads the whole inventory from the bus.
      PATIENCE = 60
      LIMIT = 16 * 1024 * 1024
      FILE = 'kicks.jsonl'
      NOTICE = %r{\Akick ->(.*)\z}m

      # @param log An object with `notice`: a resource, or Puppet itself
      # @param kick [Hash] `name`, `roles` or `query`, `tags`, `ttl`
      # @raise [Puppet::Error] one line: no answer, or no trigger could be sent
      def self.kick(log, kick, patience: PATIENCE)
        answer = Agent.call('kick', kick.merge('run' => Agent.run), patience: patience, limit: LIMIT)
        receivers = [answer['receivers']].flatten.compact
        return log.notice('no other node matches, so no kick is sent') if receivers.empty?

        sent = Sent.to(log, receivers, answer)
        return if sent.empty?

        log.notice(Program.line("kicks #{sent.join(', ')}") + (answer['deferred'] ? ' after this run' : ''))
      end

      # Record a kick of this catalog.
      # @param kick [Hash] `roles` and `query`
      def self.note(kick)
        Noted.note(FILE, 'a kick', kick)
      end

      # @param title [String] the title of a Notify
      # @return [Array<String>] the roles in "kick -> haproxy, web"; empty for any other title
      def self.roles(title)
        title.to_s[NOTICE, 1].to_s.split(',').map(&:strip).reject(&:empty?)
      end
    end
  end
end
