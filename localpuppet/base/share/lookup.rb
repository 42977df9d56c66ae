# frozen_string_literal: true

# Loaded before `puppet lookup --compile` (RUBYOPT): with an ENC, Puppet would first request a
# certificate of the node from its CA, which a run does not need. Puppet accepts a node object as it
# is, so this file finds the node as `puppet apply` does: facts, then the node terminus. The facts
# are this machine's, or those of another terminus if the caller names it. --facts overrides some.
require 'json'
require 'puppet'
require 'puppet/application/lookup'

# Finds the node without a CA.
module LocalpuppetLookup
  def generate_scope(&block)
    Puppet.settings[:facts_terminus] = 'facter' unless Puppet.settings.set_by_cli?(:facts_terminus)
    name = Puppet[:node_name_value]
    file = options.delete(:fact_file)
    facts = retrieve_node_facts(name, file && JSON.parse(File.read(file)))
    environment = Puppet[:environment]
    options[:node] = Puppet::Node.indirection.find(name, facts: facts, environment: environment)
    super
  end
end
Puppet::Application::Lookup.prepend(LocalpuppetLookup)
