# frozen_string_literal: true

require_relative 'reads'

module LocalpuppetPreview
  # Puppet::Pops::Loader::ModuleLoaders::FileBased: a module's loader lists all its functions and types
  # once, to look names up in that list. Only the names that it looks up count, unless the list is empty:
  # then it looks nothing up.
  module IndexHooks
    METHODS = %i[existing_path candidate_paths add_to_index relative_paths].freeze

    def existing_path(effective_path)
      Reads.check(effective_path)
      super
    end

    def candidate_paths(effective_path)
      Reads.list(File.dirname(effective_path))
      super
    end

    def add_to_index(smart_path)
      found = Reads.pause { super }
      Reads.list(smart_path.generic_path, deep: true) if found.empty?
      found
    end

    def relative_paths(smart_path)
      Reads.list(smart_path.generic_path, deep: true)
      super
    end
  end
end
