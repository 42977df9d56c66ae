# frozen_string_literal: true

require 'date'
require 'etc'
require 'openssl'
require 'securerandom'
require 'socket'
require_relative 'file_hooks'

module LocalpuppetPreview
  # Hooks of what may return something else the next time: time, random numbers, programs, the
  # network, the environment, the machine. Such a compile is impure.
  module MachineHooks
    # Libraries whose C code reads without Ruby's methods.
    LIBRARIES = %w[fiddle fiddle/import ffi sqlite3 rugged augeas sdbm dbm gdbm pty].freeze
    TIME = {
      Time => %i[now], Process => %i[clock_gettime times pid ppid uid euid gid egid],
      DateTime => %i[now], Date => %i[today]
    }.freeze
    RANDOM = {
      Random => %i[rand bytes new_seed seed urandom random_number],
      SecureRandom => %i[bytes gen_random hex uuid random_number rand base64 urlsafe_base64 alphanumeric choose],
      OpenSSL::Random => %i[random_bytes pseudo_bytes], OpenSSL::BN => %i[rand pseudo_rand rand_range generate_prime],
      OpenSSL::PKey => %i[generate_key generate_parameters], OpenSSL::PKCS7 => %i[encrypt]
    }.freeze
    # Methods of keys and ciphers; padding has random bytes.
    KEYS = {
      OpenSSL::Cipher => %i[random_iv random_key], OpenSSL::PKey::RSA => %i[public_encrypt encrypt],
      OpenSSL::PKey::DSA => %i[sign sign_raw syssign], OpenSSL::PKey::EC => %i[generate_key generate_key! sign sign_raw dsa_sign_asn1]
    }.freeze
    MACHINE = {
      Etc => %i[getpwnam getpwuid getgrnam getgrgid getlogin passwd group uname nprocessors sysconfdir systmpdir],
      Socket => %i[
        gethostname getifaddrs ip_address_list getaddrinfo gethostbyname gethostbyaddr getnameinfo getservbyname getservbyport
      ],
      IPSocket => %i[getaddress], TCPSocket => %i[gethostbyname], Addrinfo => %i[getaddrinfo new tcp udp ip foreach],
      Dir => %i[pwd getwd home tmpdir]
    }.freeze
    PROGRAMS = { Process => %i[spawn fork _fork daemon exec], IO => %i[popen] }.freeze
    SOCKETS = [TCPSocket, UDPSocket, UNIXSocket, Socket, TCPServer, UNIXServer].freeze
    # Methods that ask for a variable by name. The engine gives each compile the same ones; of the
    # machine's, only those in INHERITED, which it may lack.
    VARIABLE = %i[[] fetch key? has_key? include? member? assoc].freeze
    INHERITED = %w[PATH LANG LC_ALL LC_CTYPE TZ].freeze
    ENVIRONMENT = %i[
      key value? has_value? values_at slice to_h to_hash to_a each each_pair keys
      values select filter reject find map dig any? all? inspect delete update merge! replace
      rassoc invert except each_key each_value size length empty? delete_if keep_if to_s clone
    ].freeze

    def self.install
      from_release(TIME, 'reads the time')
      from_release(RANDOM, 'uses a random number')
      from_release(MACHINE, 'reads the machine')
      FileHooks.hook(ENV, ENVIRONMENT) { |*_, **_| Reads.impure('reads the environment') if Reads.from_release? }
      FileHooks.hook(ENV, VARIABLE) { |name = nil, *_, **_| Reads.impure('reads the environment') if variable?(name) && Reads.from_release? }
      FileHooks.hook(Time, %i[new]) do |*arguments, **options|
        Reads.impure('reads the time') if arguments.empty? && !options.key?(:year) && Reads.from_release?
      end
      FileHooks.hook(Random, %i[new]) { |*seed, **_| Reads.impure('uses a random number') if seed.empty? && Reads.from_release? }
      PROGRAMS.each { |target, names| FileHooks.hook(target, names) { |*_, **_| Reads.program } }
      KEYS.each do |target, names|
        FileHooks.hook_instances(target, names) { |*_, **_| Reads.impure('uses a random number') if Reads.from_release? }
      end
      FileHooks.hook(OpenSSL::PKey::RSA, %i[new generate]) do |first = nil, *_, **_|
        Reads.impure('uses a random number') if first.is_a?(Integer) && Reads.from_release?
      end
      install_dates
      [Programs, Chances].each { |layer| FileHooks.kernel(layer) }
      Array.prepend(Shuffles)
      SOCKETS.each { |socket| socket.prepend(Sockets) }
      FileHooks.hook(Signal, %i[trap]) { |*_, **_| Reads.impure('handles signals') if Reads.from_release? }
      FileHooks.hook(ObjectSpace, %i[each_object]) { |*_, **_| Reads.impure('reads the memory') if Reads.from_release? }
    end

    # Return whether a machine may have a variable.
    def self.variable?(name)
      INHERITED.include?(name) || !name.is_a?(String) || Reads.pause { ENV.key?(name) }
    end

    # A date without a year is one of today.
    def self.install_dates
      [Date, DateTime].each do |target|
        FileHooks.hook(target, %i[parse]) { |text = '', *_, **_| partial(Date._parse(text)) if text.is_a?(String) }
        FileHooks.hook(target, %i[strptime]) { |text = '', form = '%F', *_, **_| partial(Date._strptime(text, form)) }
      end
    end

    def self.partial(parts)
      Reads.impure('reads the time') if parts && (parts.keys & %i[year cwyear jd seconds]).empty? && Reads.from_release?
    end

    def self.from_release(methods, reason)
      methods.each do |target, names|
        FileHooks.hook(target, names) { |*_, **_| Reads.impure(reason) if Reads.from_release? }
      end
    end

    # Programs that any code starts.
    module Programs
      private

      %i[` system spawn exec fork syscall].each do |name|
        define_method(name) do |*arguments, **options, &block|
          Reads.program
          super(*arguments, **options, &block)
        end
      end
    end

    # Random numbers without a seed.
    module Chances
      private

      %i[rand srand].each do |name|
        define_method(name) do |*arguments|
          Reads.impure('uses a random number') if Reads.from_release?
          super(*arguments)
        end
      end
    end

    # Orders without a seed.
    module Shuffles
      %i[shuffle shuffle! sample].each do |name|
        define_method(name) do |*arguments, **options|
          Reads.impure('uses a random number') if !options.key?(:random) && Reads.from_release?
          super(*arguments, **options)
        end
      end
    end

    # Sockets of any kind.
    module Sockets
      def initialize(*arguments, **options)
        Reads.impure('opens a socket') if Reads.on?
        super
      end
    end
  end
end
