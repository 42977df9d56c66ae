"""Field values of a dataclass by name, and the check of their types."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import pytest

from localpuppet.base.formats.values import check_field_types, field_values


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


@pytest.mark.parametrize(
    "changes", [{"seconds": 1}, {"seconds": 1.5}, {"about": None}, {"names": ("a",)}]
)
def test_values_of_their_types_pass(changes: dict[str, Any]) -> None:
    check_field_types(replace(Sample(), **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"text": None},
        {"count": True},
        {"count": 1.0},
        {"seconds": True},
        {"seconds": "1"},
        {"flag": 1},
        {"colour": "red"},
        {"names": ["a"]},
        {"about": []},
    ],
)
def test_an_error_names_the_field_with_the_wrong_type(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(changes))} has the wrong type"):
        check_field_types(replace(Sample(), **changes))
