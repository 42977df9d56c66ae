# frozen_string_literal: true

# A part of an application: a declaration without any effect on the node. (`component` is Puppet's
# internal type of classes and defined types.)
Puppet::Type.newtype(:application_component) do
  @doc = <<~DOC
    Declares that a part of an application is on this node, what it produces for parts on other
    nodes and what it consumes from them. `localpuppet rollout plan` orders the nodes by that.

        application_component { 'Lamp::Mysql[app1]':
          produces => 'Sql[app1]',
        }
        application_component { 'Lamp::Webapp[app1-1]':
          application => 'Lamp[app1]',
          consumes    => 'Sql[app1]',
          produces    => 'Http[app1-1]',
        }

    A capability is only a name: its consumers wait for all its producers.
  DOC

  line = lambda do |value|
    next if value.is_a?(String) && value == value.strip && value.match?(%r{\A[^[:cntrl:]]{1,255}\z})

    raise Puppet::Error, 'must be a string of 1 to 255 characters on one line, without space at its ends'
  end

  newparam(:name, namevar: true) do
    desc 'Which part of which application: `Lamp::Mysql[app1]`.'

    validate { |value| line.call(value) }
  end

  newparam(:application) do
    desc "The instance that it is a part of. Default for `Lamp::Mysql[app1]`: `Lamp[app1]`."

    validate { |value| line.call(value) }
  end

  { produces: 'The capabilities that others may consume: a string or an array.',
    consumes: 'The capabilities that it requires: a string or an array.' }.each do |name, text|
    newparam(name) do
      desc text

      defaultto { [] }

      validate { |value| [value].flatten.each { |one| line.call(one) } }

      munge { |value| [value].flatten.uniq.sort }
    end
  end

  # Puppet calls this for each resource before it applies the first: components are published also
  # if a tag excludes them from this run.
  def pre_run_check
    require_relative '../../puppet_x/localpuppet/noted'
    noted = { 'name' => self[:name], 'produces' => self[:produces], 'consumes' => self[:consumes] }
    noted['application'] = self[:application] if self[:application]
    PuppetX::Localpuppet::Noted.note('components.jsonl', 'a component', noted)
  end
end
