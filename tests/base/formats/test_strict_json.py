"""JSON from other machines: localpuppet limits its depth, not the parser."""

import json

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import MAX_DEPTH, loads, parse_object
from tests.rigs.limited import limited


def nested(levels: int, *, shape: str = "[]") -> str:
    if shape == "[]":
        return '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("shape", ["[]", "{}"])
def test_localpuppet_limits_the_depth_below_the_limit_of_the_parser(shape: str) -> None:
    deepest = nested(MAX_DEPTH, shape=shape).encode()
    assert parse_object(deepest, where="x", limit=10**6) == json.loads(deepest)
    assert loads(deepest) == json.loads(deepest)
    # The parser itself accepts this depth, so localpuppet's own limit refuses it.
    deeper = nested(MAX_DEPTH + 1, shape=shape)
    assert json.loads(deeper)
    with pytest.raises(InvalidInputError, match=f"x: is nested too deep: more than {MAX_DEPTH}"):
        parse_object(deeper.encode(), where="x", limit=10**6)
    for text in (deeper, deeper.encode()):
        with pytest.raises(ValueError, match="nested too deep"):
            loads(text)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"a": "[" * 500}),
        json.dumps({"[" * 500: 1}),
        json.dumps({"a": '\\"' + "[{" * 500}),
        json.dumps({"a": "\\" * 501, "b": "[" * 500}),
        json.dumps([[1], [2]] * 500),
        json.dumps({"é\u2028": ["[", {"]": "}"}]}, ensure_ascii=False),
    ],
)
def test_brackets_in_strings_or_side_by_side_add_no_depth(text: str) -> None:
    assert loads(text.encode()) == loads(text) == json.loads(text)


@pytest.mark.parametrize("escaped", ["", "\\n"])
@pytest.mark.parametrize("shift", range(-9, 3))
def test_depth_is_counted_in_a_long_text_at_any_offset(shift: int, escaped: str) -> None:
    """The check reads documents without an escape in parts of 64 KiB, others differently."""
    text = f'{{"a": "{"[" * (65536 + shift)}{escaped}", "b": %s}}'
    fine = text % ('"' + "]" * 70_000 + '"')
    assert loads(fine) == json.loads(fine)
    with pytest.raises(ValueError, match="nested too deep"):
        loads(text % nested(MAX_DEPTH))


@pytest.mark.parametrize("data", [b"", b"{", b'{"a', b'"\\', b"\xff", b"nul", b"\x00[\x00]"])
def test_invalid_json_raises_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(data)


HOSTILE = {
    "brackets": "b'[' * 1_000_000",
    "objects": "b'{\"a\":' * 200_000",
    # A reader that searches for the end of a string from each quote needs minutes for this.
    "quotes": "b'\"' + b'\\\\\\\\\\\"' * 330_000",
    "empty strings": "b'\"\"' * 500_000",
    "backslashes": "b'\"' + b'\\\\\\\\' * 500_001",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_nesting_is_refused_with_little_cpu_time(name: str) -> None:
    program = (
        "from localpuppet.base.formats.strict_json import loads\n"
        f"data = {HOSTILE[name]}\n"
        "try: loads(data)\n"
        "except ValueError: print('refused')\n"
    )
    done = limited(program)
    assert done.out == "refused\n", done.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1, 2, 3, 4, 5, 6]", "more than 5 values"),
        ("[[], [], []]", "more than 5 values"),
        ('{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}', "more than 5 values"),
        ("[NaN]", "NaN is not JSON"),
        (f"[{2**63}]", "too large for 64 bits"),
        (f"[-{'9' * 4000}]", "too large for 64 bits"),
        ("[-1e999]", "too large"),
        ('["\\ud800"]', "surrogates not allowed"),
    ],
)
def test_values_that_others_may_have_written_are_checked(text: str, problem: str) -> None:
    json.loads(text)
    for data in (text, text.encode()):
        loads(data)
        with pytest.raises((ValueError, InvalidInputError), match=problem):
            loads(data, values=5)
    assert loads('[1, "a, b, c, d, e", {}]', values=5) == [1, "a, b, c, d, e", {}]
