"""How values compare, and queries that no person wrote against a slow evaluator."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import compact
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query import comparing
from localpuppet.fleet.inventory.query.ast_form import parse_array
from localpuppet.fleet.inventory.query.comparing import test_of as comparison_of
from localpuppet.fleet.inventory.query.discovery import parse_nodes
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.pql import parse_pql, to_array
from localpuppet.fleet.inventory.query.query_limits import MAX_EXPRESSION
from localpuppet.fleet.inventory.query.tree import (
    Compare,
    Entity,
    Field,
    Loose,
    Operand,
    Operator,
    Select,
)
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import FLEET, entry, inventory
from tests.rigs.quick import examples

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
def test_values(actual: Json, operator: Operator, wanted: Operand, verdict: bool | None) -> None:
    assert comparing.compare(actual, operator, wanted) is verdict
    assert comparing.same([1, {"a": 2}], [1.0, {"a": 2}])
    assert not comparing.same([1], [True])


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("9.4", "10.2"), ("1.0rc1", "1.0"), ("1.0", "1.0.1"), ("6.1.0-9", "6.1.0-13"), ("7", "7.1")],
)
def test_versions(earlier: str, later: str) -> None:
    assert comparing.version_key(earlier) < comparing.version_key(later)
    assert comparing.version_key("7.23") == comparing.version_key("7.23.0")


TEXTS = st.text(alphabet='ab1:, "\\.', max_size=4)

VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(0, 12), st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)

ATOMS = [
    " ",
    *[r"a", r"b1", r'"', r".", r"\.", r":", r",", r"\b", r"\d", r"\W", r"[a1]", r"[0-z]", r"[^a]",
     r"[1-9]"],
]  # fmt: skip

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
    assert comparing.on_text(test, match)(compact(value)) is expected


def test_a_line_break_is_a_character_like_others() -> None:
    """As in PostgreSQL, whose expressions PuppetDB has."""
    assert comparing.searching("one.two")("one\ntwo")
    assert comparing.matching_whole(".*")("one\ntwo")
    assert not comparing.searching("one$")("one\ntwo")


def test_a_regular_expression_takes_linear_time() -> None:
    assert not comparing.searching("^(a+)+$")("a" * 60_000 + "!")
    assert not comparing.searching("(x+x+)+y")("x" * 60_000)


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
        comparing.searching(expression)


def test_a_step_of_a_path_is_matched_as_a_whole() -> None:
    assert comparing.matching_whole("eth.")("eth0")
    assert not comparing.matching_whole("eth")("eth0")
    assert comparing.matching_whole("a|b")("b")
    with pytest.raises(InvalidInputError):
        comparing.matching_whole("a)|(b")


FIELDS = ("certname", "environment", "facts.uptime", "facts.cluster", "facts.processors.count")

DRAWN = st.sampled_from(
    ["web01.example.com", "production", "20", "3 days", "blue", "it's \"\\", 4, 8, 16, True, -1.5]
)

DRAWN_TEXTS = st.sampled_from(["web", "^db", "2", "days$", "."])
FIELD = st.sampled_from(FIELDS)


def values(field: str) -> st.SearchStrategy[Any]:
    """Return values that a field may have: a column that is no fact has texts only."""
    return DRAWN if "." in field else DRAWN.filter(lambda value: isinstance(value, str))


COMPARED = st.one_of(
    FIELD.flatmap(lambda field: st.tuples(st.just("="), st.just(field), values(field))),
    st.tuples(st.just("~"), FIELD, DRAWN_TEXTS),
    st.tuples(
        st.sampled_from(["<", "<=", ">", ">="]),
        st.just("facts.processors.count"),
        st.sampled_from([4, 8, 9.5]),
    ),
    st.tuples(st.just("null?"), FIELD, st.booleans()),
    FIELD.flatmap(
        lambda field: st.tuples(
            st.just("in"),
            st.just(field),
            st.lists(values(field), max_size=3).map(lambda one: ["array", one]),
        )
    ),
).map(list)

CONDITION = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: ["and", *parts]),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: ["or", *parts]),
        inner.map(lambda part: ["not", part]),
    ),
    max_leaves=8,
)

SIMPLE = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}


def value_of(row: Any, field: str) -> Any:
    for step in field.split("."):
        row = row.get(step) if isinstance(row, dict) else None
    return row


def equal(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def without_two_nots(condition: Any) -> Any:
    while condition[0] == condition[1][0] == "not":
        condition = condition[1][1]
    return condition


def slowly(condition: Any, row: Any) -> bool | None:
    """Return the result of a condition, by the rules of PuppetDB and without anything clever."""
    name, *parts = without_two_nots(condition)
    if name in ("and", "or"):
        results = [slowly(part, row) for part in parts]
        decisive = name == "or"
        return decisive if decisive in results else None if None in results else not decisive
    if name == "not":
        inner, *rest = parts[0]
        if inner in ("~", *SIMPLE) and "." in rest[0] and value_of(row, rest[0]) is None:
            return False
        result = slowly(parts[0], row)
        return None if result is None else not result
    actual, wanted = value_of(row, parts[0]), parts[1]
    if name == "null?":
        return (actual is None) is wanted
    if name == "=":
        return (False if ("." in parts[0]) else None) if actual is None else equal(actual, wanted)
    if name == "in" and not wanted[1]:
        return False
    if actual is None:
        return None if name == "in" else False
    if name == "in":
        return any(equal(actual, one) for one in wanted[1])
    text = actual if isinstance(actual, str) else json.dumps(actual)
    if name == "~":
        return re.search(wanted, text) is not None
    return bool(getattr(float(actual), SIMPLE[name])(float(wanted)))


def pql(condition: Any) -> str:
    name, *parts = condition
    if name in ("and", "or"):
        return "(" + f" {name} ".join(map(pql, parts)) + ")"
    if name == "not":
        return f"!({pql(parts[0])})"
    if name == "null?":
        return f"{parts[0]} is {'null' if parts[1] else 'not null'}"
    if name == "in":
        return f"{parts[0]} in {json.dumps(parts[1][1])}"
    return f"{parts[0]} {name} {json.dumps(parts[1])}"


def names(query: list[Any]) -> list[str]:
    found = Evaluation(inventory()).stream(parse_array(query))
    return [json.loads(text)["certname"] for text in found.rows]


ROWS = [
    json.loads(text)
    for text in Evaluation(inventory()).stream(parse_array(["from", "inventory"])).rows
]


@examples(150)
@given(CONDITION)
def test_the_evaluator_agrees_with_a_slow_one(condition: list[Any]) -> None:
    expected = [row["certname"] for row in ROWS if slowly(condition, row) is True]
    assert names(["from", "inventory", condition]) == expected


@given(CONDITION)
def test_pql_and_ast_are_two_forms_of_one_query(condition: list[Any]) -> None:
    assert to_array(f"inventory {{ {pql(condition)} }}") == ["from", "inventory", condition]


@given(
    st.lists(
        st.tuples(st.sampled_from(["name", "certname", "value"]), st.sampled_from(["asc", "desc"])),
        max_size=3,
    ),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_a_page_is_a_part_of_all(orders: list[tuple[str, str]], limit: int, offset: int) -> None:
    order: list[Any] = [["order_by", [list(one) for one in orders]]] if orders else []
    query: list[Any] = ["from", "facts", ["~", "name", "^[a-m]"], *order]
    whole = [*Evaluation(inventory()).stream(parse_array(query)).rows]
    select = parse_array([*query, ["limit", limit], ["offset", offset]])
    page = Evaluation(inventory()).stream(select, total=True)
    assert [*page.rows] == whole[offset : offset + limit]
    assert page.total == len(whole)
    assert len({json.loads(text)["certname"] for text in whole}) == len(FLEET)


def test_a_text_that_is_no_finite_number_stays_a_text() -> None:
    reader = MemoryInventory([entry("n1.example.com", {"x": "1e999"})])
    select = parse_pql("facts[max(value)] { name = 'x' }")
    assert [*Evaluation(reader).stream(select).rows] == ['{"max":"1e999"}']


def test_a_missing_value_in_a_fact_has_a_path_and_a_type() -> None:
    reader = MemoryInventory([entry("n1.example.com", {"x": {"none": None, "is": False}})])
    select = parse_pql("fact_paths[path, type] { name = 'x' }")
    assert [json.loads(text) for text in Evaluation(reader).stream(select).rows] == [
        {"path": ["x", "is"], "type": "boolean"},
        {"path": ["x", "none"], "type": "null"},
    ]


def test_a_condition_for_any_state_is_about_the_whole_alternative() -> None:
    any_: Json = ["=", "node_state", "any"]
    failed: Json = ["=", "status", "failed"]
    noop: Json = ["=", "noop", True]
    queries: list[Json] = [["or", failed, any_, noop], ["and", any_, ["or", failed, noop]]]
    first, second = (parse_array(["from", "reports", query]).where for query in queries)
    assert repr(first) == repr(second)


@pytest.mark.parametrize("key", ["007", "0", "10"])
def test_digits_are_a_key_of_a_hash_as_they_are_written(key: str) -> None:
    reader = MemoryInventory([entry("n1.example.com", {"x": {key: {"a": 1}}})])
    in_pql = parse_pql(f"inventory {{ facts.x.{key}.a = 1 }}")
    of_nodes = Select(entity=Entity.INVENTORY, where=parse_nodes(f"x.{key}.a=1"))
    of_fact = parse_array(["from", "nodes", ["=", ["fact", f"x.{key}.a"], 1]])
    for select in (in_pql, of_nodes, of_fact):
        assert len([*Evaluation(reader).stream(select).rows]) == 1
