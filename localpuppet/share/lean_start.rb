# frozen_string_literal: true

# Loaded before Puppet (RUBYOPT): takes our start-up tuning out of the environment again, so that
# what Puppet starts sees what the caller had. Nothing else is changed.
warn 'localpuppet: lean start' if ENV.delete('LOCALPUPPET_PROBE')
original = ENV['LOCALPUPPET_RUBYOPT']
ENV.delete('LOCALPUPPET_UNSET').to_s.split.each { |name| ENV.delete(name) }
ENV['RUBYOPT'] = original
