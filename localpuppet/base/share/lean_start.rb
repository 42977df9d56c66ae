# frozen_string_literal: true

# Loaded before Puppet (RUBYOPT): restores the environment that localpuppet changed for the start,
# so that Puppet's children see the caller's. The node's lock stays with this process: a daemon that
# a module starts (system, spawn) must not keep the node busy. Nothing else changes.
asked = ENV.delete('LOCALPUPPET_PROBE') # settings of the section [user]
if asked
  warn 'localpuppet: lean start'
  at_exit do # where this Ruby is, what it loaded Puppet from, and what would take further starts
    standard = RbConfig::CONFIG.values_at(*%w[rubylibdir rubyarchdir sitedir sitelibdir sitearchdir vendordir vendorlibdir vendorarchdir])
    path = $LOAD_PATH.map(&:to_s) - standard - (defined?(Puppet) ? [Puppet[:libdir]] : [])
    used = standard.select { |place| $LOADED_FEATURES.any? { |file| file.start_with?("#{place}/") } }
    gems = (Gem.path - [Gem.user_dir]).reject { |place| Dir.glob("#{place}/{gems,specifications}/*").empty? }
    places = [RbConfig.ruby, RbConfig::CONFIG['libdir'], *used, *gems, *path, File.absolute_path($PROGRAM_NAME)]
    more = begin
      { version: Puppet.version, user: Puppet.settings.stringify_settings('user', asked.split).transform_values(&:to_s) }
    rescue StandardError # an older Puppet, or one that has said already what is wrong with puppet.conf
      {}
    end
    require 'json'
    warn "localpuppet: ruby #{JSON.generate(ruby: RbConfig.ruby, load_path: path, places: places.uniq, **more)}"
  end
end
locale = ENV['LOCALPUPPET_LC_ALL'] # Ruby has set its encoding by now
ENV['LC_ALL'] = locale.empty? ? nil : locale if locale
begin
  lock = ENV['LOCALPUPPET_LOCK']
  IO.for_fd(Integer(lock, 10), autoclose: false).close_on_exec = true if lock
  sealed = ENV['LOCALPUPPET_SEALED'] # of the release's sealed values, which the supervisor opens
  if sealed && sealed.match?(/\A\d+\z/) # not a word for what opens nothing
    IO.for_fd(Integer(sealed, 10), autoclose: false).close_on_exec = true
    LOCALPUPPET_SEALED = Integer(sealed, 10)
  end
rescue Errno::EBADF
  nil # a wrapper around Puppet closed it: then no child inherits it
end
require_relative 'feature_index' if RUBY_ENGINE == 'ruby' && RUBY_VERSION.start_with?('3.1.')
require_relative 'lean_patches' if defined?(RubyVM::InstructionSequence)
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
