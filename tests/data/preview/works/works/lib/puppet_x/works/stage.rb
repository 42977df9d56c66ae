module PuppetX
  module Works
    module Stage
      def self.of(name, region)
        name.start_with?('t') ? 'test' : "live-#{region}"
      end
    end
  end
end
