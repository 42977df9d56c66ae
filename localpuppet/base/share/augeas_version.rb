# frozen_string_literal: true

# Facter asks the Augeas library for its version, and has it read all its lenses and half of /etc for
# that: 0.6 s of each run where ruby-augeas is installed and augparse is not. Here the library is
# asked the same without reading anything.
module LocalpuppetAugeasVersion
  # For Facter's resolver of the fact.
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

  # For RubyVM::InstructionSequence, which is asked for each file that Ruby loads: the first one
  # after the resolver finds it there.
  module Load
    def load_iseq(path)
      LocalpuppetAugeasVersion.settle if defined?(::Facter::Resolvers::Augeas)
      super if defined?(super)
    end
  end

  # Give Facter's resolver our way, once.
  def self.settle
    return if @settled

    @settled = true
    resolver = ::Facter::Resolvers::Augeas.singleton_class
    resolver.prepend(Resolver) if resolver.private_method_defined?(:read_augeas_from_gem)
  end

  RubyVM::InstructionSequence.singleton_class.prepend(Load)
end
