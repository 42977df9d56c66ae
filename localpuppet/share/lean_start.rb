# frozen_string_literal: true

# Loaded before Puppet (RUBYOPT): takes our start-up tuning out of the environment again, so that
# what Puppet starts sees what the caller had. Nothing else is changed.
warn 'localpuppet: lean start' if ENV.delete('LOCALPUPPET_PROBE')
locale = ENV['LOCALPUPPET_LC_ALL'] # by now Ruby has its encoding
ENV['LC_ALL'] = locale.empty? ? nil : locale if locale
original = ENV['LOCALPUPPET_RUBYOPT']
ENV.delete('LOCALPUPPET_UNSET').to_s.split.each { |name| ENV.delete(name) }
ENV['RUBYOPT'] = original
