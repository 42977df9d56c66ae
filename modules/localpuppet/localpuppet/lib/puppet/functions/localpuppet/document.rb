# frozen_string_literal: true

require 'json'

# Returns the text of a settings file: JSON, which is YAML, so that no value can become structure.
#
# Keys without a value (`undef`, an empty mapping) are omitted, so that defaults apply. `Sensitive`
# values may be anywhere; the text itself is `Sensitive`.
Puppet::Functions.create_function(:'localpuppet::document') do
  # @param settings The content of the file.
  # @return The text.
  dispatch :document do
    param 'Variant[Hash, Sensitive[Hash]]', :settings
    return_type 'Sensitive[String]'
  end

  # Escapes characters that YAML readers take for line breaks, or do not print.
  def document(settings)
    text = JSON.pretty_generate(plain(settings) || {})
    text = text.gsub(%r{[\u007f-\u009f\u2028\u2029\ufeff]}) { |sign| format('\u%04x', sign.ord) }
    Puppet::Pops::Types::PSensitiveType::Sensitive.new("#{text}\n")
  end

  def plain(value)
    case value
    when Puppet::Pops::Types::PSensitiveType::Sensitive then plain(value.unwrap)
    when Array then value.map { |item| plain(item) }
    when Hash
      kept = value.transform_values { |item| plain(item) }.compact
      kept.empty? ? nil : kept
    else value
    end
  end
end
