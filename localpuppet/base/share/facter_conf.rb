# frozen_string_literal: true

# A facter.conf of the node's own (the setting puppet.facter_conf) in the place of the machine's, and
# a directory of the node's own for the facts that it has Facter remember: Facter's is for everybody
# to read. How long which facts are remembered is Facter's own matter.
module LocalpuppetFacterConf
  # For Facter's reader of its configuration. It would parse the file again for each question.
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

  # For Facter's configuration of directories.
  module Directories
    def facts_cache_dir
      LocalpuppetFacterConf.cache
    end
  end

  # For RubyVM::InstructionSequence, which is asked for each file that Ruby loads: the first one
  # after Facter's two finds them there.
  module Load
    def load_iseq(path)
      LocalpuppetFacterConf.settle
      super if defined?(super)
    end
  end

  class << self
    attr_reader :file, :cache

    # Have Facter, which is not loaded yet, read a file, and remember facts in a directory.
    def take(file, cache)
      @file = file
      @cache = cache
      RubyVM::InstructionSequence.singleton_class.prepend(Load)
    end

    # Tell Facter, once its files are there.
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
