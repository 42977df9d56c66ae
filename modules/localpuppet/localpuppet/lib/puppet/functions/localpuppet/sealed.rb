# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/sealed'

# A backend of Hiera 5: finds the sealed values of a release, and opens those that are for this node.
#
# Each path of the hierarchy entry is a level: a directory below `sealed/values`.
Puppet::Functions.create_function(:'localpuppet::sealed') do
  # @example In hiera.yaml
  #   - name: sealed
  #     lookup_key: localpuppet::sealed
  #     datadir: sealed/values
  #     paths: ["nodes/%{trusted.certname}", "role/%{role}", common]
  dispatch :find do
    param 'String[1]', :key
    param 'Hash[String, Any]', :options
    param 'Puppet::LookupContext', :context
  end

  def find(key, options, context)
    directory = options.fetch('path') { raise Puppet::Error, 'localpuppet::sealed needs paths, one for each level' }
    value = PuppetX::Localpuppet::Sealed.find(directory, key)
    value.nil? ? context.not_found : value
  end
end
