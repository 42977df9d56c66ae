# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:dummy) do
  desc 'Sends nothing; a notice names the receivers.'

  def restart
    to = resource[:hosts].empty? ? 'nobody' : resource[:hosts].join(', ')
    resource.notice("provider dummy: nothing was sent (to #{to})")
  end
end
