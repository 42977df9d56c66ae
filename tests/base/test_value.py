"""Values: fields, defaults, equality, and what cannot be done to them."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from localpuppet.base.value import Value

T = TypeVar("T")


class Part(Value):
    SIZE: ClassVar[int] = 3
    name: str
    counts: dict[str, int] = field(default_factory=dict)


class Whole(Part, Generic[T]):
    part: Part
    other: T
    name: str = "whole"

    @property
    def both(self) -> str:
        return self.name + self.part.name

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("empty")


class Nothing(Value):
    """No field."""


PART = Part(name="a")
WHOLE = Whole(part=PART, other=(1,))


def test_fields_have_their_values_and_defaults() -> None:
    assert (WHOLE.name, WHOLE.counts, WHOLE.other, WHOLE.both) == ("whole", {}, (1,), "wholea")
    assert Part.SIZE == PART.SIZE == 3
    assert repr(PART) == "Part(name='a', counts={})"
    assert Part(name="b").counts is not PART.counts
    assert not hasattr(WHOLE, "__dict__")


def test_values_are_equal_by_class_and_fields() -> None:
    class Same(Value):
        name: str
        counts: dict[str, int] = field(default_factory=dict)

    assert Part(name="a") == PART != Part(name="b")
    assert Same(name="a") != PART
    assert Nothing() == Nothing()
    assert len({Nothing(), Nothing(), Whole(part=1, other=2, counts=(), name="x")}) == 2  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unhashable"):
        hash(PART)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "the field 'name' is missing"),
        ({"name": "a", "more": 1}, "Part has no field 'more'"),
        ({"name": "a", "SIZE": 1}, "Part has no field 'SIZE'"),
    ],
)
def test_each_field_is_passed_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Part(**values)
    with pytest.raises(TypeError, match="positional"):
        Part("a")  # type: ignore[call-arg]


def test_a_value_is_checked_and_never_changed() -> None:
    with pytest.raises(ValueError, match="empty"):
        replace(WHOLE, name="")
    with pytest.raises(FrozenInstanceError):
        PART.name = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del PART.name
    assert PART.name == "a"


def test_values_work_with_dataclasses_copies_and_patterns() -> None:
    @dataclass
    class Holder:
        part: Part

    assert is_dataclass(PART)
    assert [member.name for member in fields(Part)] == ["name", "counts"]
    assert [member.name for member in fields(Whole)] == ["name", "counts", "part", "other"]
    assert asdict(Holder(PART)) == {"part": {"name": "a", "counts": {}}}
    assert replace(WHOLE, name="x", part=replace(PART, name="y")).both == "xy"
    for same in (copy.copy(WHOLE), copy.deepcopy(WHOLE), pickle.loads(pickle.dumps(WHOLE))):  # noqa: S301
        assert same == WHOLE
    match WHOLE:
        case Whole(part=Part(name=name)):
            assert name == "a"
