# frozen_string_literal: true

# Facter opens the Augeas library to get its version, which reads all lenses and half of /etc: 0.6 s
# of each run if ruby-augeas is installed and augparse is not. This file gets the version without
# reading them.
module LocalpuppetAugeasVersion
  # Replaces a method of Facter's resolver of the fact.
  module Resolver
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

  # Hooks RubyVM::InstructionSequence, which Ruby calls for each file that it loads: the first call
  # after the resolver is loaded patches it.
  module Load
    def load_iseq(path)
      LocalpuppetAugeasVersion.settle if defined?(::Facter::Resolvers::Augeas)
      super if defined?(super)
    end
  end

  # Patch Facter's resolver, once.
  def self.settle
    return if @settled

    @settled = true
    resolver = ::Facter::Resolvers::Augeas.singleton_class
    resolver.prepend(Resolver) if resolver.private_method_defined?(:read_augeas_from_gem)
  end

  RubyVM::InstructionSequence.singleton_class.prepend(Load)
end
