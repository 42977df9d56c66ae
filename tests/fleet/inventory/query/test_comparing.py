"""How values compare, and how large a regular expression may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.comparing import (
    compare,
    matching_whole,
    on_text,
    same,
    searching,
    version_key,
)
from localpuppet.fleet.inventory.query.comparing import (
    test_of as comparison_of,
)
from localpuppet.fleet.inventory.query.query_limits import MAX_EXPRESSION
from localpuppet.fleet.inventory.query.tree import Compare, Field, Loose, Operator, Value

LESS, EQUAL = Operator.LESS, Operator.EQUAL


@pytest.mark.parametrize(
    ("actual", "operator", "wanted", "verdict"),
    [
        (8, EQUAL, 8.0, True),
        ("8", EQUAL, 8, False),
        (True, EQUAL, 1, False),
        (3, LESS, 4, True),
        ("3", LESS, 4, None),
        (True, LESS, 4, None),
        ("12.40", EQUAL, Loose("12.4"), True),
        (12.4, EQUAL, Loose("12.40"), True),
        ("12.4a", EQUAL, Loose("12.4"), False),
        (True, EQUAL, Loose("true"), True),
        (True, EQUAL, Loose("1"), False),
        ("12.4", LESS, Loose("100"), True),
        ("3 days", LESS, Loose("100"), None),
        (["a"], EQUAL, Loose("a"), False),
        (None, LESS, Loose("1"), None),
        ("9" * 5000, LESS, Loose("1"), None),
    ],
)
def test_values(actual: Json, operator: Operator, wanted: Value, verdict: bool | None) -> None:
    assert compare(actual, operator, wanted) is verdict


def test_booleans_are_not_numbers_in_lists_either() -> None:
    assert same([1, {"a": 2}], [1.0, {"a": 2}])
    assert not same([1], [True])


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("9.4", "10.2"), ("1.0rc1", "1.0"), ("1.0", "1.0.1"), ("6.1.0-9", "6.1.0-13"), ("7", "7.1")],
)
def test_versions(earlier: str, later: str) -> None:
    assert version_key(earlier) < version_key(later)


TEXTS = st.text(alphabet='ab1:, "\\.', max_size=4)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(0, 12), st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
ATOMS = [
    "a",
    "b1",
    '"',
    ".",
    r"\.",
    ":",
    ",",
    " ",
    r"\b",
    r"\d",
    r"\W",
    "[a1]",
    "[0-z]",
    "[^a]",
    "[1-9]",
]
PATTERNS = st.lists(st.sampled_from([*ATOMS, "^", "$", "|", "*", "+", "?", "{1,2}"]), min_size=1)


@given(VALUES, PATTERNS)
def test_a_pattern_finds_the_same_in_the_stored_text(value: Json, parts: list[str]) -> None:
    match = Compare(
        field=Field(column="value", text="value"), operator=Operator.MATCH, value="".join(parts)
    )
    try:
        test = comparison_of(match)
    except InvalidInputError:
        return
    expected = None if value is None else test(value)
    assert on_text(test, match)(compact(value)) is expected


def test_versions_that_are_the_same() -> None:
    assert version_key("7.23") == version_key("7.23.0")


def test_a_regular_expression_takes_linear_time() -> None:
    assert not searching("^(a+)+$")("a" * 60_000 + "!")
    assert not searching("(x+x+)+y")("x" * 60_000)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("[", "missing ]"),
        ("(?=a)", "no look-around"),
        (r"(a)\1", "no look-around, no back references"),
        ("a" * (MAX_EXPRESSION + 1), "too long"),
        ("((a{100}){100}){100}", "refused"),
    ],
)
def test_refused(expression: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        searching(expression)


def test_a_step_of_a_path_is_matched_as_a_whole() -> None:
    assert matching_whole("eth.")("eth0")
    assert not matching_whole("eth")("eth0")
    assert matching_whole("a|b")("b")
    with pytest.raises(InvalidInputError):
        matching_whole("a)|(b")
