require_relative '../../puppet_x/works/stage'
Puppet::Type.newtype(:queue) do
  newparam(:name)
  newparam(:depth) do
    munge { |value| value.to_i }
  end
end
