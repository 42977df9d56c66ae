# Reads a Puppetfile from standard input, runs it, and prints its modules as JSON.
#
# The caller sets the limits (no network, another user, time, memory).
require 'json'

# The functions that a Puppetfile may call; r10k has the same.
class Reader
  attr_reader :said

  def initialize
    @said = { 'modules' => [], 'forge' => '' }
  end

  def mod(name, args = nil, **options)
    options = args if args.is_a?(Hash)
    version = args.is_a?(Hash) ? '' : args.to_s
    line = caller_locations.find { |place| place.path == 'Puppetfile' }&.lineno || 0
    kept = options.compact.to_h { |key, value| [key.to_s, value.to_s] }
    @said['modules'] << { 'name' => name.to_s, 'line' => line, 'version' => version, 'options' => kept,
                          'moduledir' => @moduledir }
  end

  def moduledir(path)
    @moduledir = path.to_s
  end

  def forge(url)
    @said['forge'] = url.to_s
  end

  def environment_name
    'production'
  end

  def basedir
    '/'
  end
end

reader = Reader.new
result = $stdout.dup
$stdout.reopen($stderr)
begin
  reader.instance_eval($stdin.read.force_encoding('UTF-8'), 'Puppetfile')
rescue Exception => e # rubocop:disable Lint/RescueException
  warn "#{e.class}: #{e.message.lines.first.to_s.strip}"
  exit!(1)
end
result.write(JSON.generate(reader.said))
result.flush
exit!(0)
