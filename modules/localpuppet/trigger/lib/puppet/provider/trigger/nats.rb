# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:nats, parent: :bus) do
  desc 'Sends the trigger over NATS JetStream, whatever the configured bus is. Servers and certificates are in localpuppet.yaml.'

  def engine
    'nats'
  end
end
