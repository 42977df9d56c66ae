# frozen_string_literal: true

# Prints as JSON what Puppet's Hiera refuses in the YAML files in the arguments. Without `key`, it refuses the whole
# file: `line` is the first such node, and `type` the Ruby class that it asks for or the error. With `key`, it refuses
# the value of that key at a lookup. No value is printed, and no code of a file is run.
require 'json'
require 'psych'

# Loads text as Puppet::Util::Yaml.safe_load does for `yaml_data` and `eyaml_lookup_key`.
def load(text)
  Psych.safe_load(text, permitted_classes: [Symbol], aliases: true)
end

def type_of(error)
  return 'alias in its own value' if error.is_a?(SystemStackError)

  error.is_a?(Psych::DisallowedClass) ? error.message[/\w+(?:::\w+)*\z/] : error.class.name
end

# Returns the error of a scalar, or of a collection's tag, in a separate document; nil if it loads.
def refusal(node)
  alone = node.is_a?(Psych::Nodes::Scalar) ? node.dup : node.class.new(nil, node.tag, node.implicit)
  alone.anchor = nil
  document = Psych::Nodes::Document.new([], [], true)
  document.children << alone
  stream = Psych::Nodes::Stream.new
  stream.children << document
  load(stream.to_yaml)
  nil
rescue StandardError, Psych::Exception => e
  type_of(e)
end

# Returns the line of the first node that is refused for a type; nil if none is refused alone.
def line_of(text, type)
  nodes = Psych.parse(text).select do |node|
    node.is_a?(Psych::Nodes::Scalar) || (node.respond_to?(:tag) && node.tag)
  end
  nodes.find { |node| refusal(node) == type }&.start_line&.succ
end

# Returns the class in a value that Puppet takes from no data function, or nil.
def odd_class(value, inside = {}.compare_by_identity)
  members = value.is_a?(Hash) ? value.values : value
  case value
  when Symbol then 'Symbol'
  when String then 'Binary' unless value.dup.force_encoding('UTF-8').valid_encoding?
  when Integer then 'Integer of more than 64 bits' if value.bit_length > 63
  when Hash, Array
    raise SystemStackError if inside[value] # Puppet follows the alias until its stack is full

    return if inside.key?(value)

    inside[value] = true
    keys = value.is_a?(Hash) ? value.keys : []
    odd = keys.reject { |key| [String, Symbol, Numeric].any? { |type| key.is_a?(type) } }
    found = odd.empty? ? nil : "key of #{odd.first.class}"
    members.each { |member| found = odd_class(member, inside) || found }
    inside[value] = false
    found
  end
end

found = ARGV.each_with_index.flat_map do |path, index|
  text = File.read(path, encoding: 'bom|utf-8')
  data = load(text)
  odd = data.is_a?(Hash) ? data.transform_values { |value| odd_class(value) }.compact : {}
  odd.map { |key, type| { index: index, line: nil, type: type, key: key.to_s } }
rescue StandardError, SystemStackError, Psych::Exception => e
  type = type_of(e)
  [{ index: index, line: e.respond_to?(:line) ? e.line : text && line_of(text, type), type: type, key: nil }]
end
puts JSON.generate(found)
