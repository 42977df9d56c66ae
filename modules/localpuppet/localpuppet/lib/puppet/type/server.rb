# frozen_string_literal: true

# The address of a server: a type to export, without any effect on the node.
Puppet::Type.newtype(:server) do
  @doc = <<~DOC
    A server that other nodes find by its role, with `servers_with_role` or a collector:

        @@server { $role:
          hostname  => $facts['networking']['hostname'],
          ipaddress => $facts['networking']['ip'],
          fqdn      => $facts['networking']['fqdn'],
        }
  DOC

  newparam(:role, namevar: true) do
    desc 'The role of the server.'
  end

  newparam(:hostname) do
    desc 'The host name, without a domain.'
  end

  newparam(:ipaddress) do
    desc 'The IP address.'
  end

  newparam(:fqdn) do
    desc 'The host name with its domain.'
  end

  newparam(:ports) do
    desc 'The ports that it listens on: one port or an array.'
  end
end
