Puppet::Functions.create_function(:'tools::double') do
  dispatch :double do
    param 'Integer', :value
  end
  def double(value)
    value * 2
  end
end
