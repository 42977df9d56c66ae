# frozen_string_literal: true

# Loaded before `puppet lookup --compile` (RUBYOPT): with an ENC, Puppet would ask its CA for a
# certificate of the node first, and a run asks nobody. A node that is given as an object is taken
# as it is, so we find it as `puppet apply` does: this machine's facts, then the node terminus.
require 'puppet'
require 'puppet/application/lookup'

# Finds the node without a CA.
module LocalpuppetLookup
  def generate_scope(&block)
    Puppet.settings[:facts_terminus] = 'facter'
    name = Puppet[:node_name_value]
    facts = retrieve_node_facts(name, nil)
    environment = Puppet[:environment]
    options[:node] = Puppet::Node.indirection.find(name, facts: facts, environment: environment)
    super
  end
end
Puppet::Application::Lookup.prepend(LocalpuppetLookup)
