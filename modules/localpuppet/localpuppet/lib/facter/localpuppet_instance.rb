# frozen_string_literal: true

# Facts from the cloud's instance data. localpuppet selects them and names the file that has them;
# without a file, this adds no facts. Other facts of the same name win: Facter's, a module's and a
# site's external ones have a higher weight.
require 'json'

file = ENV['LOCALPUPPET_INSTANCE_FACTS'].to_s
# Processes that Puppet starts as another user inherit the variable, but may not read the file.
if File.readable?(file)
  JSON.parse(File.read(file, encoding: 'UTF-8')).each do |name, value|
    Facter.add(name) do
      has_weight(-1)
      setcode { value }
    end
  end
end
