"""Reads and writes the lists that a run adds to its record: `queries.json`, `collected.json`.

The files have schema version 1.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from localpuppet.base.errors import StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.machine.files import write_durably

SCHEMA = 1

Noted = TypeVar("Noted")


class ListItem(Protocol):
    """An entry of such a list."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""


def read_listed(path: Path, name: str, parse: Callable[[Mapping[str, Any]], Noted]) -> list[Noted]:
    """Return the entries that a run has noted, in order.

    Args:
        path: The file.
        name: The key of the list in the file.
        parse: Returns an entry; raises `StateError` without a location.
    """
    try:
        raw = read_json(path)
    except FileNotFoundError:
        return []
    check_schema(raw, SCHEMA, where=str(path))
    listed = raw.get(name)
    if not isinstance(listed, list):
        raise StateError(f"is damaged: {name} is not a list", where=str(path))
    try:
        return [parse(item) for item in listed]
    except StateError as error:
        raise StateError(error.what, where=str(path)) from error


def write_listed(path: Path, name: str, listed: Sequence[ListItem]) -> None:
    """Replace the entries that a run has noted.

    Args:
        path: The file.
        name: The key of the list in the file.
        listed: All entries, in order.
    """
    # In one line: of ten thousand nodes each is another line, and written ten times as slowly.
    text = compact({"schema": SCHEMA, name: [item.to_dict() for item in listed]})
    write_durably(path, f"{text}\n".encode())
