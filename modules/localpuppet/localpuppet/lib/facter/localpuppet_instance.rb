# frozen_string_literal: true

# Facts from the cloud's instance data. Which they are is decided by localpuppet, which names the file
# that has them; without one this adds nothing. Facter's own facts, a module's and a site's external
# ones of the same name win: theirs weigh more.
require 'json'

file = ENV['LOCALPUPPET_INSTANCE_FACTS'].to_s
# What Puppet starts as another user inherits the variable, and may not read the file.
if File.readable?(file)
  JSON.parse(File.read(file, encoding: 'UTF-8')).each do |name, value|
    Facter.add(name) do
      has_weight(-1)
      setcode { value }
    end
  end
end
