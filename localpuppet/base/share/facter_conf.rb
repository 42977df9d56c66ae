# frozen_string_literal: true

# Replaces the machine's facter.conf by the node's (the setting puppet.facter_conf), and Facter's
# cache directory by a private one: everybody can read Facter's. Facter decides which facts it
# caches, and for how long.
module LocalpuppetFacterConf
  # Replaces methods of Facter's configuration reader, which would parse the file again for each
  # query.
  module Reader
    def refresh_config(path)
      super unless path == @parsed
      @parsed = path
    end

    private

    def default_path
      LocalpuppetFacterConf.file
    end
  end

  # Replaces a method of Facter's configuration of directories.
  module Directories
    def facts_cache_dir
      LocalpuppetFacterConf.cache
    end
  end

  # Hooks RubyVM::InstructionSequence, which Ruby calls for each file that it loads: the first call
  # after Facter's two files are loaded patches them.
  module Load
    def load_iseq(path)
      LocalpuppetFacterConf.settle
      super if defined?(super)
    end
  end

  class << self
    attr_reader :file, :cache

    # Set Facter's configuration file and cache directory; call it before Facter is loaded.
    def take(file, cache)
      @file = file
      @cache = cache
      RubyVM::InstructionSequence.singleton_class.prepend(Load)
    end

    # Patch Facter once its files are loaded.
    def settle
      return if @settled || !defined?(::Facter::ConfigReader) || !defined?(::LegacyFacter::Util::Config)

      directories = ::LegacyFacter::Util::Config.singleton_class
      reader = ::Facter::ConfigReader.singleton_class
      return unless directories.method_defined?(:facts_cache_dir) && reader.private_method_defined?(:default_path)

      @settled = true
      directories.prepend(Directories)
      reader.prepend(Reader)
    end
  end
end
