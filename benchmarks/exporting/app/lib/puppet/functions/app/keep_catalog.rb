# frozen_string_literal: true

require 'json'

# Leaves the catalog, as it was compiled, in Puppet's vardir.
Puppet::Functions.create_function(:'app::keep_catalog') do
  dispatch(:keep) {}

  def keep
    Puppet::Resource::Catalog.prepend(Kept)
    nil
  end

  # Puppet makes catalogs of its settings, too.
  module Kept
    def to_ral
      return super if name == 'Settings'

      data = Puppet::Pops::Serialization::ToDataConverter.convert(to_data_hash, rich_data: true, symbol_as_string: true)
      File.write(File.join(Puppet[:vardir], 'catalog.json'), JSON.generate(data))
      super
    end
  end
end
