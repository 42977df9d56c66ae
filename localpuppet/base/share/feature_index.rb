# frozen_string_literal: true

# Puppet's autoloader appends each file that it has loaded to $LOADED_FEATURES by itself. Ruby 3.1
# then resolves the real path of every file that is loaded, one path component after another: some
# 300,000 system calls in a short run, a fifth of its time. (Ruby 3.3 remembers them.) So that its
# index stays, the file is appended by Ruby itself: required, with nothing in it.
module LocalpuppetFeatureIndex
  NOTHING = RubyVM::InstructionSequence.compile('')
  REQUIRE = Kernel.instance_method(:require)
  private_constant :NOTHING, :REQUIRE

  # For RubyVM::InstructionSequence: what a file consists of that is only to be appended.
  module Load
    def load_iseq(path)
      return NOTHING if path == Thread.current[:localpuppet_feature]

      super if defined?(super)
    end
  end

  # For $LOADED_FEATURES.
  module Append
    def <<(feature)
      LocalpuppetFeatureIndex.append(feature)
      last.equal?(feature) || last == feature ? self : super
    end
  end

  # Have Ruby take a file for loaded; it does not where it knows another path of the same file.
  def self.append(path)
    return unless path.is_a?(String) && path.start_with?('/') && path.end_with?('.rb')

    Thread.current[:localpuppet_feature] = path
    REQUIRE.bind_call(self, path)
  rescue LoadError
    nil # it is gone, say: then it is appended as ever
  ensure
    Thread.current[:localpuppet_feature] = nil
  end

  RubyVM::InstructionSequence.singleton_class.prepend(Load)
  $LOADED_FEATURES.singleton_class.prepend(Append)
end
