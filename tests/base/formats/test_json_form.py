"""Dataclasses that define for each field how it is read from JSON."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_form import JsonForm, integer, parsed, parsed_list, read_by
from localpuppet.base.formats.names import NodeName, parse_tag
from localpuppet.base.formats.values import Json

WEB = NodeName("web.example.com")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kick(JsonForm):
    node: NodeName = field(metadata=parsed(NodeName.parse))
    tags: tuple[str, ...] = field(default=(), metadata=parsed_list(parse_tag, maximum=2))
    hops: int = field(default=0, metadata=integer(minimum=0, always=True))
    only_noop: bool = field(default=False, metadata=read_by(Fields.boolean))


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter(JsonForm):
    SCHEMA: ClassVar = 3
    kick: Kick = field(metadata=read_by(lambda raw, key: Kick.read(raw.inner(key))))


def read(raw: dict[str, Json]) -> Letter:
    return Letter.read(Fields(raw, where="letter"))


def test_a_written_record_reads_back_as_equal() -> None:
    letter = Letter(kick=Kick(node=WEB, tags=("a", "b"), hops=1, only_noop=True))
    assert read(letter.to_dict()) == letter


def test_a_default_is_written_only_if_its_field_is_always_written() -> None:
    written = Letter(kick=Kick(node=WEB)).to_dict()
    assert written == {"schema": 3, "kick": {"node": "web.example.com", "hops": 0}}
    assert read(written).kick.tags == ()


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"schema": 3, "kick": {"node": WEB, "more": 1}}, "letter.kick: unknown key 'more'"),
        ({"schema": 3, "kick": {"hops": 1}}, "letter.kick: the key 'node' is missing"),
        ({"schema": 3, "kick": {"node": WEB, "hops": -1}}, "letter.kick.hops: is -1"),
        ({"schema": 3, "kick": {"node": WEB, "tags": ["a", 1]}}, r"letter.kick.tags\[1\]: must be"),
        ({"schema": 4, "kick": {"node": WEB}}, "letter: "),
        ({"kick": {"node": WEB}}, "letter: "),
    ],
)
def test_an_invalid_field_is_an_error_that_names_its_path(
    raw: dict[str, Json], problem: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"^{problem}"):
        read(raw)
