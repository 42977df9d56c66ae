Puppet::Functions.create_function(:'profile::unused') do
  def unused
    1
  end
end
