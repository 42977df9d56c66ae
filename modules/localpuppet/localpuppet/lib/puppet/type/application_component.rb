# frozen_string_literal: true

# A part of an application: a type that is only there to be declared. Applying one does nothing.
# (`component` is a type of Puppet's own: what classes and defined types become.)
Puppet::Type.newtype(:application_component) do
  @doc = <<~DOC
    Says that a part of an application is on this node, what it produces for parts on other nodes
    and what it needs of them: `localpuppet plan` finds the order of the nodes by that.

        application_component { 'Lamp::Mysql[app1]':
          produces => 'Sql[app1]',
        }
        application_component { 'Lamp::Webapp[app1-1]':
          application => 'Lamp[app1]',
          consumes    => 'Sql[app1]',
          produces    => 'Http[app1-1]',
        }

    A capability is only a name: whoever consumes it waits for all who produce it.
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
    desc "The instance that it is a part of; for `Lamp::Mysql[app1]` that is `Lamp[app1]` unless given."

    validate { |value| line.call(value) }
  end

  { produces: 'The capabilities that others may consume: one, or an array of them.',
    consumes: 'The capabilities that it needs: one, or an array of them.' }.each do |name, text|
    newparam(name) do
      desc text

      defaultto { [] }

      validate { |value| [value].flatten.each { |one| line.call(one) } }

      munge { |value| [value].flatten.uniq.sort }
    end
  end

  # Puppet calls this for each resource before it applies the first: others hear of all of them, also
  # of those that a tag leaves out of this run.
  def pre_run_check
    require_relative '../../puppet_x/localpuppet/noted'
    noted = { 'name' => self[:name], 'produces' => self[:produces], 'consumes' => self[:consumes] }
    noted['application'] = self[:application] if self[:application]
    PuppetX::Localpuppet::Noted.note('components.jsonl', 'a component', noted)
  end
end
