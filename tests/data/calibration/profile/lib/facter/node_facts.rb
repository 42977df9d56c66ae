# frozen_string_literal: true

require 'json'

# Facts of a node, as its root has them; some replace Facter's own.
file = File.join(ENV.fetch('LOCALPUPPET_ROOT', ''), 'node_facts.json')
if File.readable?(file)
  JSON.parse(File.read(file)).each do |name, value|
    Facter.add(name.to_sym) do
      has_weight(1000)
      setcode { value }
    end
  end
end
