"""Records: each value is restored, and each other form is refused with its place."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats import converter
from localpuppet.base.formats.names import NodeName, parse_tag
from localpuppet.base.formats.schema_number import check_schema, damage_errors, without_schema
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.value import Value


class Colour(StrEnum):
    """An enumeration."""

    RED = "red"


class Point(NamedTuple):
    """A pair."""

    step: int
    node: NodeName


class Amount(Value):
    """A value with a registered form."""

    number: int


class Sample(Value):
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
    word: int | str = "a"


def _amount(raw: object) -> Amount:
    if not isinstance(raw, str) or not raw.isdigit():
        raise TypeError("must be digits")
    return Amount(number=int(raw))


def _digits(amount: Amount) -> str:
    return str(amount.number)


converter.register_form(Amount, read=_amount, write=_digits)
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
    amount=Amount(number=3),
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
    amount=Amount(number=0),
    parent=SMALL,
)


@pytest.mark.parametrize("value", [SMALL, LARGE])
def test_a_value_is_restored_from_json(value: Sample) -> None:
    raw = json.loads(json.dumps(converter.to_record(value)))
    copy = converter.from_record(Sample, raw)
    assert copy == value
    assert all(type(node) is NodeName for node in (*copy.nodes, *copy.reasons))
    assert raw["points"] == [[step, str(node)] for step, node in value.points]
    assert raw["since"] == ("2026-11-23T15:00:00.000001Z" if value.since else None)
    assert raw["amount"] == str(value.amount.number)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": True}, "sample.count: must be an integer, not a boolean"),
        ({"count": 1.0}, "sample.count: must be an integer, not a number"),
        ({"count": "1"}, "sample.count: must be an integer, not a string"),
        ({"seconds": True}, "sample.seconds: must be a number, not a boolean"),
        ({"noop": 1}, "sample.noop: must be true or false, not a number"),
        ({"colour": "blue"}, "sample.colour: 'blue' is not a valid Colour"),
        ({"since": 5}, "sample.since: must be a string, not a number"),
        ({"since": "now"}, "sample.since: "),
        ({"nodes": "ab"}, "sample.nodes: must be a list, not a string"),
        ({"nodes": [5]}, "sample.nodes[0]: must be a string, not a number"),
        ({"nodes": ["b", "a b"]}, "sample.nodes[1]: node name 'a b' has"),
        ({"points": [[True, "a"]]}, "sample.points[0][0]: must be an integer, not a boolean"),
        ({"points": [[1]]}, "sample.points[0]: has 1 elements, must have 2"),
        ({"reasons": {"a b": ""}}, "sample.reasons.(a key of 3 characters): node name 'a b' has"),
        ({"reasons": {"a": 1}}, "sample.reasons.a: must be a string, not a number"),
        ({"reasons": []}, "sample.reasons: must be a mapping, not a list"),
        ({"amount": "x"}, "sample.amount: must be digits"),
        ({"parent": {}}, "sample.parent: the key 'count' is missing"),
        ({"parent": []}, "sample.parent: must be a mapping, not a list"),
        ({"other": 1}, "sample: unknown key 'other'"),
        ({"word": 1.5}, "sample.word: must be an integer or a string, not a number"),
    ],
)
def test_another_form_is_refused_with_its_place(changes: dict[str, Any], message: str) -> None:
    raw = json.loads(json.dumps(converter.to_record(LARGE))) | changes
    with pytest.raises(InvalidInputError) as refusal:
        converter.from_record(Sample, raw, where="sample")
    assert str(refusal.value).startswith(message)


def test_a_record_is_an_object_with_each_key() -> None:
    others: tuple[object, ...] = (None, [], "text", 5)
    for raw in others:
        with pytest.raises(InvalidInputError, match="must be a mapping"):
            converter.from_record(Sample, raw)
    whole = json.loads(json.dumps(converter.to_record(SMALL)))
    for key in whole:
        rest = {name: value for name, value in whole.items() if name != key}
        with pytest.raises(InvalidInputError, match=f"the key '{key}' is missing"):
            converter.from_record(Sample, rest)


class Kick(converter.Message):
    node: Annotated[NodeName, converter.Key("to")]
    tags: Annotated[
        tuple[Annotated[str, parse_tag], ...], converter.AllowedRange(minimum=1, maximum=2)
    ] = ()
    hops: Annotated[int, converter.AllowedRange(minimum=0)] = 0
    noop: Annotated[bool, converter.ALWAYS] = False

    def __post_init__(self) -> None:
        if self.hops > 9:
            raise InvalidInputError("is too large", where="hops", hint="send fewer")


class Note(converter.Message):
    text: Annotated[str, partial(parse_line, what="text")]


class Letter(converter.Message):
    SCHEMA: ClassVar = 3
    WHERE: ClassVar = "letter"
    LIMIT: ClassVar = 200
    kind: str
    content: Annotated[Kick | Note, converter.Selected("kind", {"kick": Kick}, Note)]


def parse(**content: object) -> Letter:
    return Letter.parse(json.dumps({"schema": 3, "kind": "kick", "content": content}).encode())


def test_a_message_reads_back_as_equal_and_writes_no_defaults() -> None:
    for content in (Kick(node=A, tags=("a", "b"), hops=1), Kick(node=A)):
        letter = Letter(kind="kick", content=content)
        assert Letter.parse(letter.to_payload()) == letter
    assert letter.to_dict() == {"schema": 3, "kind": "kick", "content": {"to": A, "noop": False}}
    note = Letter(kind="note", content=Note(text="a"))
    assert Letter.parse(note.to_payload()) == note


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"to": A, "more": 1}, "letter.content: unknown key 'more'"),
        ({"to": A, "no name\n": 1}, "letter.content: unknown key 'no name\\n'"),
        ({"hops": 1}, "letter.content: the key 'to' is missing"),
        ({"to": A, "hops": -1}, "letter.content.hops: is -1, must be an integer from 0"),
        ({"to": A, "hops": True}, "letter.content.hops: must be an integer from 0, not a boolean"),
        ({"to": A, "hops": 10}, "letter.content.hops: is too large (send fewer)"),
        ({"to": A, "tags": ["a", 1]}, "letter.content.tags[1]: must be a string, not a number"),
        ({"to": A, "tags": ["a", "?"]}, "letter.content.tags[1]: '?' is not a tag (a name without"),
        ({"to": A, "tags": []}, "letter.content.tags: has 0 elements; 1 to 2 are allowed"),
        ({"to": A, "tags": ["a"] * 3}, "letter.content.tags: has 3 elements; 1 to 2 are allowed"),
    ],
)
def test_an_invalid_field_is_an_error_with_its_path(content: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        parse(**content)
    assert str(refusal.value).startswith(problem)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"schema": 4, "kind": "note", "content": {"text": "a"}}',
        b'{"kind": "note", "content": {"text": "a"}}',
        b'{"schema": 3, "kind": "note", "kind": "note", "content": {"text": "a"}}',
        b'{"schema": 3, "kind": "note", "content": {"text": "%s"}}' % (b"a" * 200),
        b'{"schema": 3, "kind": [], "content": {"text": "a"}}',
        b"[]",
    ],
)
def test_a_message_of_another_version_or_beyond_its_limits_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"^letter[:.]"):
        Letter.parse(payload)


class Numbered(converter.Message):
    WHERE, SCHEMA = "request", 1


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"schema": 2}, "has schema 2; this version reads 1"),
        ({"schema": 0}, "has schema 0; this version reads 1"),
        ({"schema": 10**30}, "has schema 100000000000; this version reads 1"),
        ({}, "has no schema number; this version reads 1"),
        ({"schema": "1"}, "has no schema number; this version reads 1"),
        ({"schema": True}, "has no schema number; this version reads 1"),
    ],
)
def test_an_error_names_an_unknown_schema_number_of_a_record_or_message(
    raw: dict[str, Json], problem: str
) -> None:
    with pytest.raises(StateError) as state:
        check_schema(raw, 1, where="record.json")
    assert str(state.value) == f"record.json: {problem}"
    with pytest.raises(InvalidInputError) as invalid:
        Numbered.read(raw)
    assert str(invalid.value) == f"request: {problem}"


def test_the_fields_of_a_record_exclude_its_schema_number() -> None:
    assert without_schema({"schema": 3, "a": 1}, 3) == {"a": 1}


@pytest.mark.parametrize("error", [KeyError("a"), TypeError("b"), InvalidInputError("c")])
def test_an_invalid_field_is_reported_as_damage(error: Exception) -> None:
    with pytest.raises(StateError, match=r"^file: is damaged: "), damage_errors("file"):
        raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    text: str = ""
    names: tuple[str, ...] = ()
    about: Mapping[str, Any] | None = None


def test_field_values_have_field_names_and_lists_for_tuples() -> None:
    about = {"a": [1]}
    found = field_values(Plain(about=about, names=("b",)))
    assert [*found.items()] == [("text", ""), ("names", ["b"]), ("about", about)]
    assert found["about"] is about
