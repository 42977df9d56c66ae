# frozen_string_literal: true

Puppet::Type.newtype(:cluster_lock) do
  @doc = <<~DOC
    A lock that only one node at a time has, for work that two nodes must not do at once.

        cluster_lock { 'db-migrate':
          wait => 60,
        }
        -> exec { '/usr/local/bin/migrate': }

    Puppet takes it when it evaluates the resource, so before the resources that require it, and
    releases it at the end of the catalog, even after failures. If the lock is not free in time, the
    resource fails, and Puppet skips the resources that require it. This node's agent renews the
    lock meanwhile; if the node dies, the lock is free when its lease has expired. In noop mode, no
    lock is taken. Taking a lock is not a change: it sends no notification, and a run that did
    nothing else is "unchanged".
  DOC

  newparam(:name, namevar: true) do
    desc 'The name of the lock: up to 100 letters, digits and `_ . -`, without a leading `.` or `-`.'

    validate do |value|
      next if value.match?(%r{\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\z})

      raise Puppet::Error,
            "must be up to 100 letters, digits and '_ . -', the first no '.' or '-', not #{value[0, 80].dump}"
    end
  end

  newparam(:wait) do
    desc 'Seconds to wait for a lock that another node has; 0 to try once.'

    defaultto 60

    validate do |value|
      raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
      raise Puppet::Error, 'must be between 0 and 86400' unless value.between?(0, 86_400)
    end
  end

  # Puppet retrieves the state of a resource that it does not skip, and an error here fails the
  # resource. A property that is always "out of sync" would do the same, but mark every run as
  # changed.
  def retrieve
    noop? ? notice('Would have taken the lock (noop)') : provider.take
    super
  end
end
