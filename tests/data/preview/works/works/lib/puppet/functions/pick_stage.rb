Puppet::Functions.create_function(:pick_stage) do
  dispatch :pick do
    param 'Optional[String]', :name
    param 'Optional[String]', :region
  end
  def pick(name, region)
    require_relative '../../puppet_x/works/stage'
    PuppetX::Works::Stage.of(name.to_s, region)
  end
end
