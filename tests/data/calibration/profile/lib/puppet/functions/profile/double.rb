# frozen_string_literal: true

# Doubles a number.
Puppet::Functions.create_function(:'profile::double') do
  dispatch :double do
    param 'Integer', :number
  end

  def double(number)
    number * 2
  end
end
