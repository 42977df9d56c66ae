# frozen_string_literal: true

Puppet::Type.newtype(:cluster_lock) do
  @doc = <<~DOC
    A lock that one node at a time has, for what must not be done by two.

        cluster_lock { 'db-migrate':
          wait => 60,
        }
        -> exec { '/usr/local/bin/migrate': }

    It is taken when Puppet comes to the resource, so before what requires it, and released when
    the catalog is done, whether it failed or not. When it cannot be had in time, the resource fails
    and what requires it is skipped. This node's agent renews it meanwhile; when the node dies, the
    lock is free after its lease ran out. Nothing is taken in noop mode. Holding a lock is not a change:
    it notifies nobody, and a run that did nothing else is "unchanged".
  DOC

  newparam(:name, namevar: true) do
    desc 'The name of the lock: up to 100 letters, digits and `_ . -`, the first no `.` or `-`.'

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

  # Puppet asks for the current state when it comes to a resource that is not skipped, and an
  # error here fails the resource. A property that is "out of sync" each time would do the same but
  # call every run changed.
  def retrieve
    noop? ? notice('Would have taken the lock (noop)') : provider.take
    super
  end
end
