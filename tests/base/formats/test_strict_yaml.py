"""Strict YAML: accepted texts, refused texts, and the line that a message names."""

import json
import re
from random import Random

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_yaml import parse
from localpuppet.base.formats.values import Json
from tests.rigs.node import completed

DEEP = "[" * 49 + "]" * 49


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: yes\nb: Off\nc: TRUE", {"a": True, "b": False, "c": True}),
        ("a: ~\nb:\nc: null", {"a": None, "b": None, "c": None}),
        ("a: 0\nb: -12\nc: +7", {"a": 0, "b": -12, "c": 7}),
        ("a: 1.5\nb: 1.\nc: -2.5e+3", {"a": 1.5, "b": 1.0, "c": -2500.0}),
        ("a: 9223372036854775807", {"a": 2**63 - 1}),
        ("a: '012'\nb: \"1:30\"", {"a": "012", "b": "1:30"}),
        ("a: |\n  12\n", {"a": "12\n"}),
        (
            "a: 1.2.3\nb: v1\nc: 10.0.0.1\nd: 1-2",
            {"a": "1.2.3", "b": "v1", "c": "10.0.0.1", "d": "1-2"},
        ),
        ("a: http://x:80/\nb: a,b", {"a": "http://x:80/", "b": "a,b"}),
        ('a: "x\u2028y"', {"a": "x\u2028y"}),
        ("\ufeffa: 1", {"a": 1}),
        ('{"a": [1, {"b": "\\u00e9"}]}', {"a": [1, {"b": "é"}]}),
        ("a: 1\r\nb: |\r\n  x\r\n", {"a": 1, "b": "x\n"}),
        ('a: "x\\ry"', {"a": "x\ry"}),
        ("# nothing\n", None),
        (f"a: {DEEP}", {"a": json.loads(DEEP)}),
    ],
)
def test_accepted_texts(text: str, value: object) -> None:
    assert parse(text.encode(), where="f") == value


@pytest.mark.parametrize(
    "text",
    [
        "0644", "1_000", "1,000", "0x1F", "0b1", "0o17", "1:30", "190:20:30", "1e3", "1.0e3", ".5",
        ".inf", "-.inf", ".nan", "yEs", "tRue", ":sym", "=", "2024-01-01", "2024-01-01T10:00:00Z",
        "2024-01-01 10:00:00", "9223372036854775808", "-9223372036854775809", "1.0e+400",
    ],
)  # fmt: skip
def test_plain_scalars_on_which_readers_disagree_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^f: line 2: x: .*\(quote it\)$"):
        parse(f"y: 1\nx: {text}\n".encode(), where="f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1", "line 1: a: anchors"),
        ("a: 1\nb: *x", "line 2: b: aliases"),
        ("a: !!str 1", "line 1: a: tags are not allowed"),
        ("a: {<<: {}}", "merge keys"),
        ("a: 1\n'a': 2", "line 2: duplicate key 'a'"),
        ("a:\n  - b: 1\n    b: 2", "line 3: a\\[0\\]: duplicate key"),
        ("{a: 1, a: 2}", "duplicate key"),
        ("1: a", "a key must be a string"),
        ("~: a", "a key must be a string"),
        ("[a]: b", "a key must be a string"),
        ("a: 1\n---\nb: 2", "line 2: a second document"),
        ("a: x\u2028y", "U\\+2028"),
        ('a: "x\x85y"', "U\\+0085"),
        ("a: 1 # a comment\rb: 2", "line 1: YAML readers disagree on the character U\\+000D"),
        ("a: 1\r\n#\rb: 2\r\n", "line 2: .*U\\+000D"),
        ('a: "x\ry"', "U\\+000D"),
        ("\ra: 1", "U\\+000D"),
        ("a: \x07", "invalid character|special characters"),
        ('a: "\\ud800"', "escape|Unicode"),
        ("a:\n\t- b\n", "line 2 column 1: a tab cannot indent"),
        ("a: @b\n", "line 1 column 4: this text needs quotes"),
        ("a: [1, 2", r"line 1 column 4: .*flow sequence.*\(close the bracket"),
        (
            'a: 1\nb: "x\nc: 3\nd: 4\n',
            "line 2 column 4: .*quoted scalar.*end of stream \\(close the quotes\\)",
        ),
        ("a: b: c", "line 1 column 5: .*quote a value with a colon"),
        ("a: b\n\tc: d", "line 2 column 1: .*\\(use blanks\\)"),
        ("a: 1\nb: {x: 1\nc: 3\n", "line 2 column 4: .*flow mapping"),
        ("a: 1\nb\nc: 2\n", "line 2 column 1: .*simple key.*write KEY: VALUE"),
        ("a:\n  b: 1\n c: 2\n", "line 3 column 2: .*block mapping.*indent the parts"),
        ('a: "b\n\\q"\n', "line 2 column 1: .*escape"),
        ('a: "x\u2028y"\nb: 012\n', "line 2: b: YAML readers disagree"),
        ('a: "x\u2028y"\nb: [1\n', "line 2 column 4: .*flow"),
        ("a: é\nb: x\x07\n", "line 2: invalid character"),
        ("a: " + "[" * 51 + "]" * 51, "too deep"),
        ("? " + "k" * 300 + "\n: 1", "longer than 255"),
    ],
)
def test_refused_texts_and_their_lines(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse(text.encode(), where="f")


def test_symbol_keys_are_accepted_only_where_puppet_accepts_them() -> None:
    assert parse(b":classes: {a: 1}", where="f", ruby=True) == {"classes": {"a": 1}}
    with pytest.raises(InvalidInputError):
        parse(b":classes: {a: 1}", where="f")


@pytest.mark.parametrize(
    "text",
    [
        "token: 12345678901234567890123",
        "password: 0123456",
        "password: 1_234_567",
        "password: 2024-01-01 hunter2",
        "password: :hunter2",
        "password: 1.0e+400",
        "password: yEs",
        "password: !hunter2 x",
        "password: &hunter2 x",
        "password: *hunter2",
        "0123456: x",
        "a: {? [hunter2] : x}",
        "'hunter2 is the word, and 0123456': 1\n'hunter2 is the word, and 0123456': 2",
        "'hunter2 is the word, and 0123456': [*x]",
        "root:$6$hunter2:0123456: [",
    ],
)
def test_messages_do_not_repeat_values(text: str) -> None:
    """The file under check may have a password in a wrong position."""
    with pytest.raises(InvalidInputError) as caught:
        parse(text.encode(), where="f")
    message = str(caught.value)
    for secret in ("hunter2", "0123456", "1234567", "1_234", "1.0e", "2024", "yEs"):
        assert secret not in message
    if text.startswith(("password", "token")):
        assert text.partition(":")[0] in message, "the message names the key"


RUBY = """
require 'psych'
require 'json'
read = JSON.parse($stdin.read).map do |text|
  value = Psych.safe_load("a: #{text}", permitted_classes: [Symbol])['a']
  usable = !value.is_a?(Symbol) && (!value.is_a?(Float) || value.finite?)
  usable && !(value.is_a?(Integer) && value.bit_length > 63) ? [value] : []
rescue StandardError, Psych::Exception
  []
end
puts JSON.generate(read)
"""
DISPUTED = """
52:54:00:12:34:56 1:30 -1:30 12:30:00 190:20:30.15 1:30.5 1:2:3:4 12:99 0o17 017 -017 08 08540
00 1_000 1,000 1__0 0b101 -0b11 0b12 0x1F +0x1f 0xg 1e3 7e12345 1.5e3 1.5e+3 .5 1. 1_0.5 1,0.5
yEs oN nO TrUe = 2024-01-02 :x .inf .nan 99999999999999999:30
"""


def in_python(text: str) -> list[Json]:
    """Return the value of a plain scalar in a list; an empty one if it is refused."""
    try:
        value = parse(f"a: {text}".encode(), where="f", ruby=True)
    except InvalidInputError:
        return []
    assert isinstance(value, dict)
    return [value["a"]]


@pytest.mark.puppet
def test_plain_scalars_for_ruby_are_read_as_ruby_reads_them() -> None:
    random = Random(39)  # noqa: S311 - the same texts each time
    pieces = "0123456789_,.:xbeE+-"
    drawn = ["".join(random.choices(pieces, k=random.randint(1, 8))) for _ in range(2000)]
    texts = [*DISPUTED.split(), *(text for text in drawn if text[0].isalnum())]
    done = completed("/usr/bin/ruby", "-e", RUBY, given=json.dumps(texts))
    for text, expected in zip(texts, json.loads(done.out), strict=True):
        found = in_python(text)
        assert (found, list(map(type, found))) == (expected, list(map(type, expected))), text


def test_aliases_and_merge_keys_for_ruby_are_written_out() -> None:
    text = b"a: &x {k: 1, l: &y [1]}\nb: *x\nc: {<<: *x, k: 2}\nd: {k: 2, <<: *x}\ne: *y\n"
    assert parse(text, where="f", ruby=True) == {
        "a": {"k": 1, "l": [1]},
        "b": {"k": 1, "l": [1]},
        "c": {"k": 2, "l": [1]},
        "d": {"k": 1, "l": [1]},
        "e": [1],
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x [*x]", "inside or before its own value"),
        ("a: *x", "inside or before its own value"),
        ("a: &x 1\n*x : 2", "an alias is a key"),
        ("a: {<<: 1}", "needs a mapping"),
        ("a: {k: 1, k: 2}", "duplicate key"),
        ("a: !ruby/object:Thing {}", "tags are not allowed"),
        (
            "a0: &a0 [xxxxxxxxxx]\n"
            + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
            "aliases expand to more than",
        ),
    ],
)
def test_what_ruby_cannot_use_either_is_refused_for_ruby(text: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(problem)):
        parse(text.encode(), where="f", ruby=True)
