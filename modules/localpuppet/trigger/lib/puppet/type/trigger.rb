# frozen_string_literal: true

Puppet::Type.newtype(:trigger) do
  @doc = <<~DOC
    On refresh, makes other nodes run Puppet.

        trigger { 'refresh load balancers':
          hosts => ['lb01.example.com', 'lb02.example.com'],
        }

        haproxy::balancermember { 'haproxy':
          # ...
          notify => Trigger['refresh load balancers'],
        }

    A declaration alone does nothing. When a resource that it subscribes to (or that notifies it)
    changes, each of the hosts gets the trigger and starts a run; several triggers for one node
    become one run. In noop mode, no trigger is sent. If a trigger cannot be sent, the resource
    fails.
  DOC

  feature :refreshable, 'The provider can send the trigger.', methods: [:restart]

  seconds = lambda do |value|
    raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
    raise Puppet::Error, 'must be between 1 and 3600' unless value.between?(1, 3600)
  end

  newparam(:name, namevar: true) do
    desc 'The purpose of the trigger; the nodes log it.'

    validate do |value|
      raise Puppet::Error, 'Empty values are not allowed' if value == ''
    end
  end

  newparam(:hosts) do
    desc <<~DOC
      The nodes that are to run, by their full names: a string or an array. Names are converted to
      lower case, without a final dot. Wildcards are rejected: query the inventory and pass names.
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
      Seconds for which a node may act on the trigger, from 1 to 3600; a node drops an older one.
      Default: the agent's.
    DOC

    validate { |value| seconds.call(value) }
  end

  newparam(:keyprefix) do
    desc 'The prefix of triggers on the bus. The receivers must watch the same prefix.'

    defaultto '/puppet_trigger/events'

    validate do |value|
      raise Puppet::Error, 'must be a string' unless value.is_a?(String)
    end
  end

  newparam(:keyttl) do
    desc 'Seconds for which the bus keeps the trigger for an offline node.'

    defaultto 180

    validate do |value|
      raise Puppet::Error, 'must be an integer' unless value.is_a?(Integer)
      raise Puppet::Error, 'must be at least 1' if value < 1
    end
  end

  newparam(:command) do
    desc <<~'DOC'
      For provider `command`: the command to run for each host, with `%{host}` replaced by the
      host's name. An array of program and arguments, or a string, which is split at spaces as in a
      shell (quotes work); no shell runs it.

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
      Maximum seconds to wait for the answer of the bus (default 10), or for the end of a command
      (default 60 for each host).
    DOC

    defaultto { (@resource[:provider] == :command) ? 60 : 10 }

    validate { |value| seconds.call(value) }
  end

  validate do
    with_command = self[:provider] == :command
    raise Puppet::Error, 'provider command needs the parameter command' if with_command && !self[:command]
    raise Puppet::Error, 'the parameter command needs provider => command' if !with_command && self[:command]
  end

  def refresh
    provider.restart
  end

  # If a refresh fails, Puppet logs the reason ("Failed to call refresh: ...") and logs it again for
  # the stack trace. Without a trace, one line is enough.
  def log_exception(exception, message = :default, options = {})
    super if message != :default || Puppet[:trace]
  end
end
