# frozen_string_literal: true

require_relative '../../../puppet_x/localpuppet/program'

# Returns the text of a systemd unit that fits the version of `localpuppet` on the node.
#
# Call it on the node: `Deferred('localpuppet::unit', …)`.
Puppet::Functions.create_function(:'localpuppet::unit') do
  # @param name The unit.
  # @param command The localpuppet executable: a path, or a name on the PATH.
  # @return The text of the unit.
  dispatch :unit do
    param 'Pattern[/\A[a-z][a-z-]*\.(service|socket|timer)\z/]', :name
    param 'String[1]', :command
    return_type 'String[1]'
  end

  def unit(name, command)
    program = PuppetX::Localpuppet::Program
    done = program.run([command, 'units', name], timeout: 30)
    return done.out if done.status.success? && done.out.include?('[Unit]')

    raise Puppet::Error, "#{command} units #{name}: #{program.complaint(done)}"
  rescue program::Error => e
    raise Puppet::Error, "#{command} units #{name}: #{e.message}"
  end
end
