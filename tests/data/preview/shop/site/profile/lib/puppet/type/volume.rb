Puppet::Type.newtype(:volume) do
  ensurable
  newparam(:name)
  newproperty(:size)
end
