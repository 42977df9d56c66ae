# frozen_string_literal: true

Puppet::Type.newtype(:trigger) do
  @doc = <<~DOC
    Makes other nodes run Puppet, when it is refreshed.

        trigger { 'refresh load balancers':
          hosts => ['lb01.example.com', 'lb02.example.com'],
        }

        haproxy::balancermember { 'haproxy':
          # ...
          notify => Trigger['refresh load balancers'],
        }

    Declaring it does nothing. When something that it subscribes to (or that notifies it) changes,
    each of the hosts gets the trigger and starts a run after that; several triggers for one node
    become one run. Nothing is sent in noop mode. A trigger that could not be sent fails the
    resource.
  DOC

  feature :refreshable, 'The provider can send the trigger.', methods: [:restart]

  newparam(:name, namevar: true) do
    desc 'What the trigger is for; it stands in the logs of the nodes.'

    validate do |value|
      raise Puppet::Error, 'Empty values are not allowed' if value == ''
    end
  end

  newparam(:hosts) do
    desc <<~DOC
      The nodes that are to run, by their full names; a single one needs no array. Upper case and a
      final dot are taken away. Wildcards are refused: ask who is there and pass the names.
    DOC

    defaultto { [] }

    label = '[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?'
    node_name = %r{\A(?=.{1,253}\z)#{label}(?:\.#{label})*\z}

    validate do |value|
      [value].flatten(1).each do |host|
        next if host.is_a?(String) && host.downcase.chomp('.').match?(node_name)

        shown = host.is_a?(String) ? host[0, 80].dump : "a value of type #{host.class}"
        raise Puppet::Error, "#{shown} is not a node name: write a full DNS name, without wildcards"
      end
    end

    munge do |value|
      [value].flatten(1).map { |host| host.downcase.chomp('.') }.uniq
    end
  end

  newparam(:ttl) do
    desc <<~DOC
      Seconds for which a node may act on the trigger; older, it is dropped. From 1 to 3600; the
      agent's own default when it is not given.
    DOC

    validate do |value|
      raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
      raise Puppet::Error, 'must be between 1 and 3600' unless value.between?(1, 3600)
    end
  end

  newparam(:keyprefix) do
    desc 'Where on the bus triggers are. The receivers must watch the same place.'

    defaultto '/puppet_trigger/events'

    validate do |value|
      raise Puppet::Error, 'must be a string' unless value.is_a?(String)
    end
  end

  newparam(:keyttl) do
    desc 'Seconds for which the bus keeps the trigger for a node that is away.'

    defaultto 180

    validate do |value|
      raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
      raise Puppet::Error, 'must be at least 1' if value < 1
    end
  end

  newparam(:command) do
    desc <<~'DOC'
      For provider `command`: what is run, once for each host, with the host's name in the place of
      `%{host}`. An array of program and arguments, or a string that is split at spaces as a shell
      does (quotes work); no shell sees it.

          command => 'mco puppet runonce -I %{host}'
          command => ['ssh', '-oBatchMode=yes', 'root@%{host}', 'puppet agent --onetime']
    DOC

    def words(value)
      require 'shellwords'
      words = value.is_a?(String) ? Shellwords.split(value) : value
      return words if words.is_a?(Array) && words.all?(String)

      raise Puppet::Error, 'must be a string or an array of strings'
    rescue ArgumentError
      raise Puppet::Error, 'has a quote that is not closed'
    end

    validate do |value|
      program, *arguments = words(value)
      raise Puppet::Error, 'must name a program' if program.nil? || program.empty?
      raise Puppet::Error, 'the program cannot depend on %{host}' if program.include?('%{host}')
      raise Puppet::Error, 'must have %{host} in one of its arguments' if arguments.none? { |word| word.include?('%{host}') }
    end

    munge do |value|
      words(value)
    end
  end

  newparam(:timeout) do
    desc <<~DOC
      Seconds until the bus has answered (default 10), or until a command has ended (default 60
      for each host). What takes longer has failed.
    DOC

    defaultto { (@resource[:provider] == :command) ? 60 : 10 }

    validate do |value|
      raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
      raise Puppet::Error, 'must be between 1 and 3600' unless value.between?(1, 3600)
    end
  end

  validate do
    with_command = self[:provider] == :command
    raise Puppet::Error, 'provider command needs the parameter command' if with_command && !self[:command]
    raise Puppet::Error, 'the parameter command needs provider => command' if !with_command && self[:command]
  end

  def refresh
    provider.restart
  end

  # When a refresh fails Puppet says why ("Failed to call refresh: ...") and then says it again, for
  # the sake of the stack trace. One line is enough where no trace was asked for.
  def log_exception(exception, message = :default, options = {})
    super if message != :default || Puppet[:trace]
  end
end
