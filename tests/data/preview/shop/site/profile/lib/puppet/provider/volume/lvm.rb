Puppet::Type.type(:volume).provide(:lvm) do
  def exists?
    true
  end
end
