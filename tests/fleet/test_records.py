"""Records: each value is restored, and each other form is refused with its place."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.records import from_record, register_form, to_record


class Colour(StrEnum):
    """An enumeration."""

    RED = "red"


class Point(NamedTuple):
    """A pair."""

    step: int
    node: NodeName


@dataclass(frozen=True)
class Amount:
    """A value with a registered form."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A field of each kind."""

    count: int
    seconds: float
    noop: bool
    colour: Colour
    since: datetime | None
    nodes: tuple[NodeName, ...]
    points: tuple[Point, ...]
    reasons: dict[NodeName, str]
    amount: Amount
    parent: "Sample | None"


def _amount(raw: object) -> Amount:
    if not isinstance(raw, str) or not raw.isdigit():
        raise TypeError("must be digits")
    return Amount(int(raw))


def _digits(amount: Amount) -> str:
    return str(amount.number)


register_form(Amount, read=_amount, write=_digits)
A = NodeName("a.example.com")
SMALL = Sample(
    count=1,
    seconds=1.5,
    noop=False,
    colour=Colour.RED,
    since=None,
    nodes=(),
    points=(),
    reasons={},
    amount=Amount(3),
    parent=None,
)
LARGE = Sample(
    count=-2,
    seconds=2,
    noop=True,
    colour=Colour.RED,
    since=datetime(2026, 11, 23, 15, 0, 0, 1, tzinfo=UTC),
    nodes=(A, NodeName("b")),
    points=(Point(1, A),),
    reasons={A: "ü"},
    amount=Amount(0),
    parent=SMALL,
)


@pytest.mark.parametrize("value", [SMALL, LARGE])
def test_a_value_is_restored_from_json(value: Sample) -> None:
    raw = json.loads(json.dumps(to_record(value)))
    copy = from_record(Sample, raw)
    assert copy == value
    assert all(type(node) is NodeName for node in (*copy.nodes, *copy.reasons))


def test_the_form_is_plain() -> None:
    raw = json.loads(json.dumps(to_record(LARGE)))
    assert raw["points"] == [[1, "a.example.com"]]
    assert raw["since"] == "2026-11-23T15:00:00.000001Z"
    assert raw["amount"] == "0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": True}, "must be an integer @ .count"),
        ({"count": 1.0}, "must be an integer @ .count"),
        ({"count": "1"}, "must be an integer @ .count"),
        ({"seconds": True}, "must be a number @ .seconds"),
        ({"noop": 1}, "must be true or false @ .noop"),
        ({"colour": "blue"}, "'blue' is not a valid Colour @ .colour"),
        ({"since": 5}, "must be a string @ .since"),
        ({"since": "now"}, "'now' @ .since"),
        ({"nodes": "ab"}, "must be a list @ .nodes"),
        ({"nodes": [5]}, "must be a string @ .nodes[0]"),
        ({"nodes": ["a b"]}, "node name 'a b' has"),
        ({"points": [[True, "a"]]}, "must be an integer @ .points[0]"),
        ({"points": [[1]]}, "@ .points[0]"),
        ({"reasons": {"a b": ""}}, "@ .reasons['a b']"),
        ({"reasons": []}, "@ .reasons"),
        ({"amount": "x"}, "must be digits @ .amount"),
        ({"parent": {}}, "is missing: 'count' @ .parent"),
        ({"other": 1}, "unknown key 'other'"),
    ],
)
def test_another_form_is_refused_with_its_place(changes: dict[str, Any], message: str) -> None:
    raw = json.loads(json.dumps(to_record(LARGE))) | changes
    with pytest.raises(InvalidInputError) as refusal:
        from_record(Sample, raw)
    assert message in str(refusal.value)


@pytest.mark.parametrize("raw", [None, [], "text", 5])
def test_a_record_is_an_object(raw: object) -> None:
    with pytest.raises(InvalidInputError, match="must be an object"):
        from_record(Sample, raw)


@pytest.mark.parametrize("key", to_record(SMALL))
def test_each_key_is_needed(key: str) -> None:
    raw = json.loads(json.dumps(to_record(SMALL)))
    del raw[key]
    with pytest.raises(InvalidInputError, match=f"is missing: '{key}'"):
        from_record(Sample, raw)
