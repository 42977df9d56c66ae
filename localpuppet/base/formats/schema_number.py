"""The number of a record's form: the integer `schema`, in every record on disk and on the bus."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError


def schema_problem(value: object, number: int) -> str:
    """Return why the value of `schema` is not `number`, one line; empty if it is."""
    if type(value) is not int:
        return f"has no schema number; this version reads {number}"
    return "" if value == number else f"has schema {str(value)[:12]}; this version reads {number}"


def check_schema(raw: Mapping[str, Any], number: int, *, where: str = "") -> None:
    """Check the number of a record that this node wrote.

    Raises:
        StateError: The record has another number, or none.
    """
    if problem := schema_problem(raw.get("schema"), number):
        raise StateError(problem, where=where)


def without_schema(raw: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the fields of a record without its number; see `check_schema`."""
    check_schema(raw, number)
    return {key: value for key, value in raw.items() if key != "schema"}


@contextmanager
def damage_errors(where: str = "") -> Iterator[None]:
    """Raise `StateError` for a record whose fields are not of its form."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, InvalidInputError) as error:
        raise StateError(f"is damaged: {error}", where=where) from error
