# frozen_string_literal: true

Puppet::Type.newtype(:kick) do
  @doc = <<~DOC
    Makes the nodes that have a role run Puppet, when it is refreshed.

        kick { 'haproxy':
          roles     => ['haproxy'],
          subscribe => Service['myapp'],
        }

    Declaring it does nothing. When something that it subscribes to (or that notifies it) changes,
    the inventory is asked who has one of the roles, or is found by the query, and each of these
    nodes but this one gets one trigger, whatever the number of kicks: after this run, when the
    others can hear what it changed. Nothing is sent in noop mode. When nobody could be asked the
    resource fails: "there are none" and "I could not ask" are different answers.
  DOC

  feature :refreshable, 'The provider can send the kick.', methods: [:restart]

  newparam(:name, namevar: true) do
    desc 'What the kick is for.'
  end

  newparam(:roles) do
    desc 'The nodes that have one of these roles, literally; a single one needs no array.'

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
    desc 'Seconds for which a node may act on it, and for which the bus keeps it; 180 unless given.'

    validate do |value|
      raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
      raise Puppet::Error, 'must be between 1 and 3600' unless value.between?(1, 3600)
    end
  end

  newparam(:timeout) do
    desc 'Seconds until the agent has answered. What takes longer has failed.'

    defaultto 60

    validate do |value|
      raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
      raise Puppet::Error, 'must be between 1 and 3600' unless value.between?(1, 3600)
    end
  end

  validate do
    next if [self[:roles], self[:query]].one?

    raise Puppet::Error, "needs roles or a query, and not both: kick { 'haproxy': roles => ['haproxy'] }"
  end

  # Puppet calls this for each resource before it applies the first: refreshed or not, the others
  # may know whom this catalog kicks.
  def pre_run_check
    provider.note
  end

  def refresh
    provider.restart
  end

  # As the type trigger: one line says why, where no stack trace was asked for.
  def log_exception(exception, message = :default, options = {})
    super if message != :default || Puppet[:trace]
  end
end
