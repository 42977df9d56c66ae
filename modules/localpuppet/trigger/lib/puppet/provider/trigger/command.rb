# frozen_string_literal: true

Puppet::Type.type(:trigger).provide(:command) do
  desc <<~'DOC'
    Runs a command for each host, one after the other: `mco`, `choria`, `ssh` or any other program
    that reaches the node, without a shell. The command inherits HOME, LOGNAME, PATH, SSH_AUTH_SOCK,
    TMPDIR, TZ and USER. All hosts are tried; an error at the end names those that failed.
  DOC

  def restart
    return resource.notice('no hosts, so nothing was sent') if resource[:hosts].empty?

    failed = resource[:hosts].filter_map { |host| attempt(host) }
    raise Puppet::Error, "could not trigger #{failed.join('; ')}" unless failed.empty?
  end

  private

  # @return [String, nil] the host and the failure, or nil
  def attempt(host)
    argv = resource[:command].map { |word| word.gsub('%{host}') { host } }
    done = program.run(argv, timeout: resource[:timeout])
    return "#{host}: #{program.complaint(done)}" unless done.status.success?

    resource.info("sent to #{host}")
    nil
  rescue program::Error => e
    "#{host}: #{argv.first} #{e.message}"
  end

  # Loaded on first use: a Puppet server loads providers, too, and runs no commands.
  def program
    require 'puppet_x/localpuppet/program'
    PuppetX::Localpuppet::Program
  rescue LoadError
    raise Puppet::Error, 'the module localpuppet is not on the modulepath (it belongs beside the module trigger)'
  end
end
