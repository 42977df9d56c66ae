# frozen_string_literal: true

require 'json'
require_relative 'facter_hooks'
require_relative 'puppet_hooks'

module LocalpuppetPreview
  # One compile, in a separate process.
  class Compile
    # Characters of a failure.
    MESSAGE = 2000
    PLACE = /\(file: (?<file>[^,)]+)(?:, line: (?<line>\d+))?/.freeze

    def initialize(request, setup)
      @request = request
      @setup = setup
    end

    # Return the result: see localpuppet/node/preview/engine.py.
    def result
      PuppetHooks::Queries.answers = @request['queries']
      Reads.start
      Reads.impure("Puppet #{Puppet.version} is unknown: it has no #{@setup['unknown']}") if @setup['unknown']
      catalog = PuppetX::Localpuppet::Catalogs.described(compile, @setup['key'])
      catalog['resources'].each { |resource| resource['file'] &&= Reads.name(resource['file']) || resource['file'] }
      finish(catalog: catalog, failure: nil)
    rescue Exception => e # rubocop:disable Lint/RescueException
      finish(catalog: nil, failure: failure(e))
    end

    private

    def finish(result)
      result.merge(reads: Reads.stop)
    end

    def compile
      name = @request['node']
      Puppet.settings.handlearg('--environment', @request['environment'])
      Puppet[:hiera_config] = @setup['hiera']
      Puppet::ApplicationSupport.push_application_context(Puppet.run_mode)
      environments = Puppet.lookup(:environments)
      environment = environments.get!(@request['environment']).override_with(manifest: @setup['manifest'])
      Puppet.override(current_environment: environment) do
        node = node(name, environment)
        Puppet.override(loaders: Puppet::Pops::Loaders.new(environment, false, false)) do
          node.trusted_data = trusted(node)
          Puppet::Parser::Compiler.compile(node)
        end
      end
    end

    def node(name, environment)
      local = { 'clientversion' => Puppet.version, 'clientnoop' => false, 'puppetversion' => Puppet.version }
      facts = Puppet::Node::Facts.new(name, { **local, **@request['facts'], 'clientcert' => name })
      FacterHooks.start(facts.values, @request['legacy'])
      Puppet[:certname] = name
      node = Puppet::Node.new(name, classes: @request['classes'], parameters: @request['parameters'].dup)
      node.environment = environment
      node.fact_merge(facts)
      node
    end

    def trusted(node)
      given = @request['trusted']
      given.empty? ? Puppet::Context::TrustedInformation.local(node).to_h : given
    end

    def failure(error)
      error = error.cause if error.is_a?(Puppet::PreformattedError) && error.message.empty? && error.cause
      text = Reads.named(error.message.to_s.dup.force_encoding('UTF-8').scrub).delete_suffix(" on node #{@request['node']}")
      text = error.class.name if text.strip.empty?
      place = PLACE.match(text)
      file = error.respond_to?(:file) && error.file ? Reads.named(error.file.to_s) : place && place[:file]
      line = error.respond_to?(:line) && error.line.is_a?(Integer) ? error.line : place && place[:line]&.to_i
      { message: text.split("\n").map(&:strip).reject(&:empty?).join(' ')[0, MESSAGE] + FacterHooks.lacking, file: file, line: line }
    end
  end
end
