# frozen_string_literal: true

# Loaded before Puppet (RUBYOPT): restores the environment that localpuppet changed for the start,
# so that Puppet's children see the caller's. The node's lock stays with this process: a daemon that
# a module starts (system, spawn) must not keep the node busy. Nothing else changes.
warn 'localpuppet: lean start' if ENV.delete('LOCALPUPPET_PROBE')
locale = ENV['LOCALPUPPET_LC_ALL'] # Ruby has set its encoding by now
ENV['LC_ALL'] = locale.empty? ? nil : locale if locale
begin
  lock = ENV['LOCALPUPPET_LOCK']
  IO.for_fd(Integer(lock, 10), autoclose: false).close_on_exec = true if lock
rescue Errno::EBADF
  nil # a wrapper around Puppet closed it: then no child inherits it
end
require_relative 'feature_index' if RUBY_ENGINE == 'ruby' && RUBY_VERSION.start_with?('3.1.')
require_relative 'augeas_version' if defined?(RubyVM::InstructionSequence)
compiled = ENV['LOCALPUPPET_COMPILED']
if compiled && RUBY_ENGINE == 'ruby'
  require_relative 'compiled_ruby'
  LocalpuppetCompiledRuby.start(compiled, record: !ENV['LOCALPUPPET_READ_ONLY'])
end
facter = ENV['LOCALPUPPET_FACTER_CONF']
if facter && RUBY_ENGINE == 'ruby'
  require_relative 'facter_conf'
  LocalpuppetFacterConf.take(facter, ENV.fetch('LOCALPUPPET_FACTER_CACHE'))
end
original = ENV['LOCALPUPPET_RUBYOPT']
ENV.delete('LOCALPUPPET_UNSET').to_s.split.each { |name| ENV.delete(name) }
ENV['RUBYOPT'] = original
