# frozen_string_literal: true

# Saves what Ruby's library and Facter do for nothing in each run, with the same result.
module LocalpuppetLeanPatches
  # Replaces a method of Ruby's lists of options. It looks at all options for each of Puppet's 300,
  # to find those whose last name the new one took; there can be one only if it takes a name.
  module Options
    private

    def update(switch, short, long, negated_switch = nil, negated = nil)
      negated = nil unless negated_switch
      return super if short&.any? { |name| @short.key?(name) } || [*long, *negated].any? { |name| @long.key?(name) }

      short&.each { |name| @short[name] = switch }
      long&.each { |name| @long[name] = switch }
      negated&.each { |name| @long[name] = negated_switch }
    end
  end

  # Replaces a method of Facter's resolver of the version of Augeas. It would read all lenses and
  # half of /etc: 0.6 s if ruby-augeas is installed and augparse is not.
  module AugeasVersion
    private

    def read_augeas_from_gem
      require 'augeas'
      if Gem.loaded_specs['augeas']
        ::Augeas.create(no_modl_autoload: true) { |augeas| augeas.get('/augeas/version') }
      else
        ::Augeas.open(nil, nil, ::Augeas::NO_MODL_AUTOLOAD) { |augeas| augeas.get('/augeas/version') }
      end
    end
  end

  # Remembers the output of commands of Facter's own resolvers, which alone pass a logger. A resolver
  # that does not find a fact starts its commands again for each other one that it does not find.
  module Commands
    def execute_command(command, on_fail = nil, logger = nil, timeout = nil)
      return super unless logger

      outputs = LocalpuppetLeanPatches.outputs
      outputs[command] = super unless outputs.key?(command)
      output = outputs[command]
      output.is_a?(Array) ? output.map(&:dup) : output.dup
    end
  end

  # Forgets the output with what the resolvers have found.
  module Session
    def invalidate_all_caches
      LocalpuppetLeanPatches.outputs.clear
      super
    end
  end

  # Replaces a method of Puppet, which makes RubyGems read the description of each gem again whenever
  # Puppet asks for a library that it lacks. A gem that was installed meanwhile is found as before.
  module Gems
    def clear_paths
      super if LocalpuppetLeanPatches.gems_changed?
    end
  end

  # Hooks RubyVM::InstructionSequence, which Ruby calls for each file that it loads.
  module Load
    def load_iseq(path)
      LocalpuppetLeanPatches.settle
      super if defined?(super)
    end
  end

  @outputs = {}
  @missing = %i[patch_options patch_augeas patch_commands patch_gems]

  class << self
    attr_reader :outputs

    # Patch what has been loaded by now.
    def settle
      @missing.reject! { |patch| send(patch) } unless @missing.empty?
    end

    # Return whether the gems have changed since the last call; true for the first one.
    def gems_changed?
      directories = Gem::Specification.dirs.flat_map { |directory| [directory, "#{directory}/default"] }
      now = [ENV.values_at('HOME', 'GEM_HOME', 'GEM_PATH'), directories.map { |directory| stamp(directory) }]
      now != @gems && (@gems = now)
    end

    private

    def stamp(directory)
      stat = File.stat(directory)
      [directory, stat.ino, stat.mtime, stat.ctime]
    rescue SystemCallError
      directory
    end

    def patch_options
      list = defined?(::OptionParser::List) && ::OptionParser::List
      list&.private_method_defined?(:update) && list.prepend(Options)
    end

    def patch_augeas
      resolver = defined?(::Facter::Resolvers::Augeas) && ::Facter::Resolvers::Augeas.singleton_class
      resolver&.private_method_defined?(:read_augeas_from_gem) && resolver.prepend(AugeasVersion)
    end

    def patch_commands
      return unless defined?(::Facter::SessionCache) && defined?(::Facter::Core::Execution::Base)

      session = ::Facter::SessionCache.singleton_class
      execution = ::Facter::Core::Execution::Base
      return unless session.method_defined?(:invalidate_all_caches) && execution.method_defined?(:execute_command)

      session.prepend(Session)
      execution.prepend(Commands)
    end

    def patch_gems
      source = defined?(::Puppet::Util::RubyGems::Gems18Source) && ::Puppet::Util::RubyGems::Gems18Source
      source&.method_defined?(:clear_paths) && source.prepend(Gems)
    end
  end

  RubyVM::InstructionSequence.singleton_class.prepend(Load)
end
