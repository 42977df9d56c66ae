# frozen_string_literal: true

require_relative '../../puppet_x/localpuppet/kicks'

Puppet::Reports.register_report(:kick) do
  desc <<~DOC
    Kicks the roles in the titles of Notify resources, as puppet-kicker's report processor did.

        notify { 'kick -> haproxy': }
        notify { 'kick -> haproxy, dns': }

    After the run, each node of these roles gets one trigger, whatever the number of kicks; in noop
    mode, none. A Notify changes in every run, so a kick is sent if another resource changed. With
    `kick: always` in localpuppet.yaml, it is sent in every run.
  DOC

  def process
    kicks = PuppetX::Localpuppet::Kicks
    asked = resource_statuses.values.select do |status|
      status.resource_type == 'Notify' && !kicks.roles(status.title).empty?
    end
    asked.each { |status| kicks.note('roles' => kicks.roles(status.title), 'query' => nil) }
    roles = asked.select(&:changed?).flat_map { |status| kicks.roles(status.title) }.uniq
    return if roles.empty?
    return Puppet.info('nothing else changed, so no kick is sent') unless kick_due?

    kicks.kick(Puppet, { 'name' => 'report', 'roles' => roles, 'query' => nil, 'tags' => [], 'ttl' => nil })
  rescue ScriptError => e
    # Only after a StandardError does Puppet continue with the next processor.
    raise Puppet::Error, "#{e.class}: #{e.message}"
  end

  def kick_due?
    ENV['LOCALPUPPET_KICK'] == 'always' ||
      resource_statuses.values.any? { |status| status.changed? && status.resource_type != 'Notify' }
  end
end
