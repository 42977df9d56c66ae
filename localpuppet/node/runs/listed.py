"""What a run adds to a list of its record while it is on: `queries.json` and `collected.json`.

Owns: the form of these files (schema version 1), and what a damaged one is. Refuses to know: what
stands in the lists.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from localpuppet.base.errors import StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.json_text import compact
from localpuppet.base.machine.files import write_durably

SCHEMA = 1

Noted = TypeVar("Noted")


class Notable(Protocol):
    """Something that stands in such a list."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        ...


def read_listed(path: Path, name: str, parse: Callable[[Mapping[str, Any]], Noted]) -> list[Noted]:
    """Return what a run has noted, in order; nothing where it has noted nothing.

    Args:
        path: The file.
        name: What the list is called in it.
        parse: Returns what stands in the list; raises `StateError` without a place.

    Raises:
        StateError: The file is damaged, or cannot be read.
    """
    try:
        listed = read_json(path).get(name, [])
    except FileNotFoundError:
        return []
    if not isinstance(listed, list):
        raise StateError(f"is damaged: {name} is not a list", where=str(path))
    try:
        return [parse(one) for one in listed]
    except StateError as error:
        raise StateError(error.what, where=str(path)) from error


def write_listed(path: Path, name: str, listed: Sequence[Notable]) -> None:
    """Write down what a run has noted, in place of what it had.

    Args:
        path: The file.
        name: What the list is called in it.
        listed: All of it, in order.
    """
    # In one line: of ten thousand nodes each is another line, and written ten times as slowly.
    text = compact({"schema": SCHEMA, name: [one.to_dict() for one in listed]})
    write_durably(path, f"{text}\n".encode())
