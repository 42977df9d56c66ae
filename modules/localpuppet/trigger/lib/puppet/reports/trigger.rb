# frozen_string_literal: true

require 'pp'

Puppet::Reports.register_report(:trigger) do
  desc <<~DOC
    Prints the status of each Trigger resource of a run, as puppet-trigger's report processor did.

    The type sends the triggers; this processor sends none. puppet-trigger printed each status twice.
  DOC

  def process
    triggers = resource_statuses.values.select { |status| status.resource_type == 'Trigger' }
    triggers.each { |status| pp(status.to_data_hash.merge('environment' => environment)) }
  end
end
