# frozen_string_literal: true

# Where a server is: a type that is only there to be exported. Applying one does nothing.
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
    desc 'What the server is for.'
  end

  newparam(:hostname) do
    desc 'Its name, without a domain.'
  end

  newparam(:ipaddress) do
    desc 'Where it is reached.'
  end

  newparam(:fqdn) do
    desc 'Its name, with its domain.'
  end

  newparam(:ports) do
    desc 'The ports that it listens on: one, or an array of them.'
  end
end
