"""Field values of a dataclass by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from localpuppet.base.formats.values import field_values


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    text: str = ""
    count: int = 1
    seconds: float | None = None
    flag: bool = False
    colour: Colour = Colour.RED
    names: tuple[str, ...] = ()
    about: Mapping[str, Any] | None = field(default_factory=dict)


def test_field_values_have_field_names_and_lists_for_tuples() -> None:
    about = {"a": [1]}
    found = field_values(Sample(about=about, names=("b",)))
    assert list(found) == ["text", "count", "seconds", "flag", "colour", "names", "about"]
    assert found["about"] is about
    assert found["names"] == ["b"]
