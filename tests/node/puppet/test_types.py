"""Decisions of type checks from the text of a type, compared with Puppet's answers."""

import json
import subprocess
from typing import Any

import pytest

from localpuppet.node.puppet.types import fits, read
from tests.rigs.limited import limited

TYPES = [
    *("Any", "Undef", "Boolean", "Boolean[true]", "Scalar", "Data", "Collection"),
    *("Integer", "Integer[1]", "Integer[default, 5]", "Integer[-3, -1]", "Integer[0x10]"),
    *("Float", "Float[0.5, 2.5]", "Numeric", "::Integer", "Type[Integer]"),
    *("String", "String[1]", "String[0, 2]", "Pattern[/^a/]", "Sensitive[String]"),
    *("Enum['a', 'b']", 'Enum["a"]', "Enum['A', true]", "Enum['it\\'s']"),
    *("Array", "Array[String]", "Array[Integer, 1]", "Array[Variant[Integer, String], 1, 2]"),
    *("Array[Array[Integer[0]]]", "Tuple[Integer, String]", "Struct[{'k1' => Integer}]"),
    *("Hash", "Hash[String, Integer]", "Hash[String[2], Any, 1]"),
    *("Hash[Enum['a', 'k1'], Optional[Integer]]", "NotUndef", "NotUndef[Variant[String, Undef]]"),
    *("Optional[Integer]", "Optional['a']", "Optional", "Variant[Integer, Boolean]"),
    *("Variant[Pattern[/x/], Integer]", "Variant[Enum['a'],\n   Array[Enum['a']]]"),
]
VALUES: list[Any] = [
    *(None, True, False, -2, 0, 1, 5, 6, 17, 1.0, 2.5, 3.5),
    *("", "a", "A", "k1", "abc", "1", "ü", "it's"),
    *([], [1], ["a"], [1, "a"], [1, 2, 3], [[1], []], [[-1]], [None]),
    *({}, {"a": 1}, {"k1": 1}, {"k1": None, "a": 2}, {"k1": "x"}),
]
RUBY = """
require 'json'; require 'puppet'
Puppet.initialize_settings(%w[--confdir /nonexistent --vardir /nonexistent])
types, values = JSON.parse($stdin.read)
parser = Puppet::Pops::Types::TypeParser.singleton
puts JSON.generate(types.map { |t|
  type = parser.parse(t)
  values.map { |v| Puppet::Pops::Types::TypeCalculator.instance?(type, v) }
})
"""


@pytest.mark.puppet
def test_no_decision_contradicts_puppet() -> None:
    done = subprocess.run(
        ["ruby", "-e", RUBY],
        input=json.dumps([TYPES, VALUES]),
        capture_output=True,
        text=True,
        check=True,
    )
    decided = 0
    for text, answers in zip(TYPES, json.loads(done.stdout.splitlines()[-1]), strict=True):
        type_ = read(text)
        for value, puppets in zip(VALUES, answers, strict=True):
            decision = fits(type_, value) if type_ else None
            assert decision in (None, puppets), f"{value!r} as {text}"
            decided += decision is not None
    assert decided > len(TYPES) * len(VALUES) * 0.6, "most checks are decided"


def test_a_type_that_only_puppet_can_read_is_left_to_puppet() -> None:
    for text in (
        *("Stdlib::Port", "Integer[$x]", 'Enum["a${b}"]', "Integer[1", "Integer]", "[Integer]"),
        *("Integer Integer", "Enum['a',]", "Variant[" * 100 + "Integer" + "]" * 100, ""),
    ):
        type_ = read(text)
        assert type_ is None or fits(type_, []) is None, text


HOSTILE = {
    "a long enumeration": "'Enum[' + ', '.join(f\"'v{n}'\" for n in range(50_000)) + ']', 'x'",
    "many of many": "'Array[Enum[' + \"'a',\" * 8_000 + \"'b']]\", ['x'] * 200_000",
    "deep": "'Array[' * 10_000, []",
    "deep and broad": "'Array[' * 40 + 'Variant[' + 'Integer,' * 5_000 + 'Float]' + ']' * 40, []",
    "spaces": "'Integer[' + ' ' * 400_000, 1",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_type_is_decided_fast_or_left_to_puppet(case: str) -> None:
    done = limited(
        "from localpuppet.node.puppet.types import fits, read\n"
        f"text, value = {HOSTILE[case]}\n"
        "found = read(text)\n"
        "print(found and fits(found, value))\n",
        seconds=3,
    )
    assert done.code == 0, done.err[-500:]
    assert done.out in ("None\n", "True\n"), "an uncertain check is left to Puppet"


def test_a_large_enumeration_is_decided() -> None:
    found = read("Enum[" + ", ".join(f"'value{number}'" for number in range(500)) + "]")
    assert found is not None
    assert fits(found, "value499") is True
    assert fits(found, "value500") is False
    many = read("Array[Enum['a', 'b']]")
    assert many is not None
    assert fits(many, ["a"] * 100_000) is True
