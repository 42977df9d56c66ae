# frozen_string_literal: true

Puppet::Type.newtype(:kick) do
  @doc = <<~DOC
    On refresh, makes the nodes that have a role run Puppet.

        kick { 'haproxy':
          roles     => ['haproxy'],
          subscribe => Service['myapp'],
        }

    A declaration alone does nothing. When a resource that it subscribes to (or that notifies it)
    changes, the agent finds the nodes with one of the roles, or those that match the query, in the
    inventory. Each of these nodes except this one gets one trigger, whatever the number of kicks:
    after this run, when its changes are published. In noop mode, no trigger is sent. If the
    inventory is unreachable, the resource fails: an outage never looks like an empty result.
  DOC

  feature :refreshable, 'The provider can send the kick.', methods: [:restart]

  seconds = lambda do |value|
    raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
    raise Puppet::Error, 'must be between 1 and 3600' unless value.between?(1, 3600)
  end

  newparam(:name, namevar: true) do
    desc 'The purpose of the kick.'
  end

  newparam(:roles) do
    desc 'The nodes that have one of these roles, literally: a string or an array.'

    validate do |value|
      roles = [value].flatten(1)
      next if roles.any? && roles.all? { |role| role.is_a?(String) && !role.strip.empty? }

      raise Puppet::Error, 'must be one string or several, none of them empty'
    end

    munge do |value|
      [value].flatten(1).uniq
    end
  end

  newparam(:query) do
    desc <<~DOC
      The nodes that an expression finds, in the language of `query_nodes`:
      `'Class[Haproxy] and datacenter=ams'`.
    DOC

    validate do |value|
      next if value.is_a?(String) && !value.strip.empty?

      raise Puppet::Error, 'must be a string that is not empty'
    end
  end

  newparam(:ttl) do
    desc 'Seconds for which a node may act on it, and for which the bus keeps it. Default: 180.'

    validate { |value| seconds.call(value) }
  end

  newparam(:timeout) do
    desc 'Maximum seconds to wait for the answer of the agent.'

    defaultto 60

    validate { |value| seconds.call(value) }
  end

  validate do
    next if [self[:roles], self[:query]].one?

    raise Puppet::Error, "needs roles or a query, and not both: kick { 'haproxy': roles => ['haproxy'] }"
  end

  # Puppet calls this for each resource before it applies the first: the receivers of a kick are
  # published even without a refresh.
  def pre_run_check
    provider.note
  end

  def refresh
    provider.restart
  end

  # Like the type trigger: without a stack trace, one line of explanation is enough.
  def log_exception(exception, message = :default, options = {})
    super if message != :default || Puppet[:trace]
  end
end
