# frozen_string_literal: true

require 'set'

module LocalpuppetPreview
  # What the compile in this process has read: see localpuppet/node/preview/ports.py.
  #
  # Each compile has a separate process, so that the caches of Puppet and Ruby are empty when it
  # starts. Only pure results outlive it (memo.rb), and each use of one calls a method of this module.
  module Reads
    # Means every top-scope variable.
    ALL = '*'
    # Localpuppet's own modules.
    OWN = '@localpuppet'
    # Functions, also Puppet's: what they return is the release's to use.
    FUNCTIONS = %r{/puppet/(?:parser/)?functions/}.freeze
    # Types and providers; Puppet's own look for programs and for Facter's facts when they are loaded.
    TYPES = %r{/puppet/(?:type|provider)/}.freeze
    # The code of a file outside methods, read by Ruby or compiled.
    LOADED = ['<top (required)>', '<main>'].freeze
    # What searches for a library that is required.
    RUBYGEMS = %r{/rubygems(?:\.rb|/)}.freeze
    # Paths that are known to all compiles.
    PLACES = 20_000
    # Callers that are looked at first.
    NEAR = 6
    RAW_STAT = File.method(:stat).unbind
    private_constant :RAW_STAT

    class << self
      # `roots`: directory => its name in the release; `system`: directories of Ruby, Puppet and the
      # engine, whose files do not count; `settings`: those of Puppet's settings, which count if the
      # release reads them.
      def configure(roots, system, settings)
        @settings = settings.map { |directory| "#{directory.delete_suffix('/')}/" }
        @roots = roots.sort_by { |directory, _| -directory.length }
        @system = system.map { |directory| "#{directory.delete_suffix('/')}/" }
        @release = Regexp.union(@roots.map { |directory, _| "#{directory}/" })
        @known = {}
        @on = false
      end

      # Begin to record a compile.
      def start
        @files = Set.new
        @absent = Set.new
        @present = Set.new
        @listed = Set.new
        @keys = Hash.new { |hash, key| hash[key] = Set.new }
        @paths = { 'facts' => Set.new, 'trusted' => Set.new }
        @parameters = Set.new
        @queries = []
        @impure = Set.new
        @places = @known.dup
        @muted_file = nil
        @on = true
      end

      def on?
        @on
      end

      # Run a block whose reads do not count.
      def pause
        before = @on
        @on = false
        yield
      ensure
        @on = before
      end

      def stop
        @on = false
        {
          files: @files.sort, absent: @absent.sort, present: (@present - @files).sort,
          listed: @listed.sort, keys: @keys.transform_values(&:sort),
          facts: least(@paths['facts']), trusted: least(@paths['trusted']),
          parameters: @parameters.sort, queries: @queries.uniq, impure: @impure.sort
        }
      end

      # Return the paths below the release that were not known when the compile began.
      def new_places
        @places.select { |path, place| place.is_a?(Place) && !@known.key?(path) }.keys
      end

      # Know the place of a path for the compiles after this one: a release does not change.
      def learn(path)
        @known[path] ||= find(path) if path.start_with?('/') && name(File.expand_path(path)) && @known.size < PLACES
      end

      # The name of a path in the release, or of the first directory that is missing on the way to it;
      # what it is: `nil` for a missing one. Links are followed, as the index of a release does.
      Place = Struct.new(:name, :kind)

      # Count the content of a file, or its absence.
      def file(path)
        found = place(path) if @on
        return if found.nil? || found.name == @muted_file

        case found.kind
        when nil then @absent << found.name
        when :directory then @present << found.name
        else @files << found.name
        end
      end

      # Count that a path was looked for.
      def check(path)
        found = place(path) if @on
        (found.kind.nil? ? @absent : @present) << found.name if found
      end

      # Count the names in a directory; in the whole tree below it if `deep`.
      def list(path, deep: false)
        found = place(path) if @on
        return if found.nil?

        case found.kind
        when nil then @absent << found.name
        when :directory then @listed << (deep ? "#{found.name}/**" : found.name)
        else @present << found.name
        end
      end

      # Count a root key of a data file. In a block, reading that file does not count as a whole.
      def key(path, root)
        found = place(path) if @on
        @keys[found.name] << root if found
      end

      def by_key(path)
        before = @muted_file
        @muted_file = place(path)&.name if @on
        yield
      ensure
        @muted_file = before
      end

      # `kind`: facts or trusted
      def fact(kind, path)
        @paths.fetch(kind) << path if @on
      end

      def parameter(name)
        @parameters << name if @on
      end

      def everything
        fact('facts', [])
        fact('trusted', [])
        parameter(ALL)
        nil
      end

      def query(function, arguments, answer)
        @queries << { function: function, arguments: arguments, answer: answer } if @on
      end

      def impure(reason)
        @impure << reason if @on
      end

      # Count that a program is started.
      def program
        impure('starts a program') if @on && !type_loading?
      end

      # Count that the release reads what a file has besides its content, which differs from copy to copy.
      def metadata
        impure("reads a file's times, mode or size without its content") if from_release?
      end

      # Return whether the code that called this method is the release's: the nearest caller that is
      # neither Ruby's library nor the engine decides.
      def from_release?
        return false unless @on

        answer = release_code?(caller_locations(2, NEAR) || [])
        answer.nil? ? release_code?(caller_locations(2)) || false : answer
      end

      # Return whether a type or provider of Puppet reads or starts this while Ruby loads it, and nothing
      # of the release asked for it. What it defines does not depend on that, and no catalog does.
      def type_loading?
        caller_locations(2).each do |location|
          path = location.absolute_path || location.path
          next if path.nil? || path.start_with?('<internal', __dir__)
          return false if path.start_with?(@release) || path == '(erb)' || path.match?(FUNCTIONS)
          return true if path.match?(TYPES) && LOADED.include?(location.base_label)
        end
        false
      end

      # Return whether the nearest code of the release is a provider that Ruby loads: its methods, which
      # use the library, are not called by a compile.
      def provider_loading?
        nearest = caller_locations(2).find { |location| location.absolute_path&.start_with?(@release) }
        !nearest.nil? && nearest.absolute_path.include?('/lib/puppet/provider/') && LOADED.include?(nearest.base_label)
      end

      # Return the text with names of the release instead of paths.
      def named(text)
        @roots.reduce(text) { |result, (directory, name)| result.gsub("#{directory}/", name.empty? ? '' : "#{name}/") }
      end

      # Return the name of a path in the release; `nil` for another path.
      def name(path)
        @roots.each do |directory, prefix|
          return prefix.empty? ? '.' : prefix if path == directory
          next unless path.start_with?(directory) && path[directory.length] == '/'

          rest = path[(directory.length + 1)..]
          return prefix.empty? ? rest : "#{prefix}/#{rest}"
        end
        nil
      end

      private

      # Return whether the first caller that decides is the release's; `nil` if none does.
      def release_code?(locations)
        locations.each do |location|
          path = location.absolute_path || location.path
          return false if path&.match?(RUBYGEMS)
          next if path.nil? || path.start_with?('<internal', __dir__)
          return true if path.start_with?(@release) || path == '(erb)' || path.match?(FUNCTIONS)
          return false if path.include?('/puppet/')
        end
        nil
      end

      # Keep the least of paths: one that begins another includes it.
      def least(paths)
        paths.reject { |path| path.length.positive? && (0...path.length).any? { |length| paths.include?(path.first(length)) } }.sort
      end

      # Return the place of a path; `nil` if it does not count.
      def place(path)
        unless path.instance_of?(String)
          path = path.to_path if path.respond_to?(:to_path)
          path = String.try_convert(path)
          return if path.nil?
        end

        found = @places.fetch(path) { @places[path] = find(path) }
        return found unless found == :settings

        impure("reads #{path}, which is not in the release") if from_release?
        nil
      end

      def find(given)
        path = File.expand_path(given)
        name = name(path)
        return outside(path, given) if name.nil?
        return if name == OWN || name.start_with?("#{OWN}/") # the key of each cached catalog has its version

        kind = kind(path)
        Place.new(name(kind ? path : highest_missing(path)), kind)
      end

      # `given`: Puppet tries some names in the working directory, which is the engine's, first.
      def outside(path, given)
        return :settings if path.start_with?(*@settings)

        counts = !path.start_with?(*@system) && !@system.include?("#{path}/")
        counts &&= given.start_with?('/') || kind(path)
        @impure << "reads #{path} outside the release" if counts && !type_loading?
        nil
      end

      def kind(path)
        stat = RAW_STAT.bind_call(File, path)
        stat.directory? ? :directory : :file
      rescue SystemCallError
        nil
      end

      def highest_missing(path)
        loop do
          parent = File.dirname(path)
          return path if name(parent).nil? || kind(parent)

          path = parent
        end
      end
    end
  end
end
