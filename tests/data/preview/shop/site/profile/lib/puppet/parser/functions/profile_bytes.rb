module Puppet::Parser::Functions
  newfunction(:profile_bytes, type: :rvalue) do |arguments|
    arguments[0].to_i * 1024**3
  end
end
