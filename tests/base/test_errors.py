"""Errors with a location, and the first error of a group."""

import pytest

from localpuppet.base.errors import InvalidInputError, StateError, errors_at, first_error


def test_nested_locations_are_put_in_front_of_an_error() -> None:
    with (
        pytest.raises(InvalidInputError) as refusal,
        errors_at("input.yaml"),
        errors_at("layers.web"),
    ):
        raise InvalidInputError("is not a tag", hint="write a tag")
    assert str(refusal.value) == "input.yaml: layers.web: is not a tag (write a tag)"


def test_an_error_of_another_class_passes_unchanged() -> None:
    with pytest.raises(StateError) as problem, errors_at("input.yaml"):
        raise StateError("is damaged", where="file")
    assert str(problem.value) == "file: is damaged"


def test_the_first_error_is_found_in_nested_groups() -> None:
    first = ValueError("a")
    inner = ExceptionGroup("inner", [first, ValueError("b")])
    assert first_error(ExceptionGroup("outer", [inner, ValueError("c")])) is first
    assert first_error(first) is first
