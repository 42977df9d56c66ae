# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:etcd, parent: :bus) do
  desc 'Sends the trigger over etcd, whatever the configured bus is. Servers and certificates are in localpuppet.yaml.'

  def engine
    'etcd'
  end
end
