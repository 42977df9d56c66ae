# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/sealed'

# Returns a sealed file, such as a TLS key, for the parameter `content` of a file.
Puppet::Functions.create_function(:sealed_file) do
  # @param name The name below `sealed/values` of the release, or below `sealed/values/files` if it has no directory.
  # @return The content.
  # @example
  #   file { '/etc/ssl/private/shop.key': content => sealed_file('shop.key') }
  dispatch :open do
    param 'Pattern[/\A[A-Za-z0-9_][\w.:+=@\/-]*\z/]', :name
    return_type 'Sensitive'
  end

  def open(name)
    level, key = File.split(name.include?('/') ? name : "files/#{name}")
    release = File.dirname(Puppet[:hiera_config])
    value = PuppetX::Localpuppet::Sealed.find(File.join(release, 'sealed/values', level), key)
    raise Puppet::Error, "sealed_file('#{name}'): the release has no such file" if value.nil?

    sensitive = Puppet::Pops::Types::PSensitiveType::Sensitive
    value.is_a?(sensitive) ? value : sensitive.new(value)
  end
end
