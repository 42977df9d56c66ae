# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:command) do
  desc <<~'DOC'
    Runs a command for each host, one after the other: `mco`, `choria`, `ssh`, whatever has a way to
    the node. No shell is involved. The command sees HOME, LOGNAME, PATH, SSH_AUTH_SOCK, TMPDIR, TZ
    and USER of Puppet's environment. All hosts are tried; those that failed are named at the end.
  DOC

  def restart
    return resource.notice('no hosts, so nothing was sent') if resource[:hosts].empty?

    failed = resource[:hosts].filter_map { |host| attempt(host) }
    raise Puppet::Error, "could not trigger #{failed.join('; ')}" unless failed.empty?
  end

  private

  # @return [String, nil] the host and why it failed
  def attempt(host)
    argv = resource[:command].map { |word| word.gsub('%{host}') { host } }
    done = program.run(argv, timeout: resource[:timeout])
    return "#{host}: #{program.complaint(done)}" unless done.status.success?

    resource.info("sent to #{host}")
    nil
  rescue program::Error => e
    "#{host}: #{argv.first} #{e.message}"
  end

  # Loaded when it is needed: a Puppet server loads providers, too, and runs nothing.
  def program
    require 'puppet_x/localpuppet/program'
    PuppetX::Localpuppet::Program
  rescue LoadError
    raise Puppet::Error, 'the module localpuppet is not on the modulepath (it belongs beside the module trigger)'
  end
end
