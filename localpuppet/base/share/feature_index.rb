# frozen_string_literal: true

# Puppet's autoloader appends each file that it has loaded to $LOADED_FEATURES. Ruby 3.1 then
# resolves the real path of every loaded file again, one path component after another: some 300,000
# system calls in a short run, a fifth of its time. (Ruby 3.3 caches the paths.) To keep its index
# valid, Ruby itself appends the file here, by requiring it with empty content.
module LocalpuppetFeatureIndex
  NOTHING = RubyVM::InstructionSequence.compile('')
  REQUIRE = Kernel.instance_method(:require)
  private_constant :NOTHING, :REQUIRE

  # Hooks RubyVM::InstructionSequence: returns empty content for a file that is only to be appended.
  module Load
    def load_iseq(path)
      return NOTHING if path == Thread.current[:localpuppet_feature]

      super if defined?(super)
    end
  end

  # Replaces a method of $LOADED_FEATURES.
  module Append
    def <<(feature)
      LocalpuppetFeatureIndex.append(feature)
      last.equal?(feature) || last == feature ? self : super
    end
  end

  # Make Ruby mark a file as loaded; it does not if it knows another path of the same file.
  def self.append(path)
    return unless path.is_a?(String) && path.start_with?('/') && path.end_with?('.rb')

    Thread.current[:localpuppet_feature] = path
    REQUIRE.bind_call(self, path)
  rescue LoadError
    nil # for example: it was deleted; then the array appends it as usual
  ensure
    Thread.current[:localpuppet_feature] = nil
  end

  RubyVM::InstructionSequence.singleton_class.prepend(Load)
  $LOADED_FEATURES.singleton_class.prepend(Append)
end
