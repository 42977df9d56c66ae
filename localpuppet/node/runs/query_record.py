"""The lists that a run adds to its record: `queries.json`, `collected.json`.

The files have schema version 1.

- A query that is repeated in the same run is listed once, with its newest answer.
- A query without an answer is listed with the reason: the catalog did not compile.
- An answer does not count as returned before it is on the disk.
- Parts of answers only explain later changes: they are kept for `MAX_PARTS` nodes of all answers
  together, and dropped for further answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.formats.strict_json import compact
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import write_durably
from localpuppet.node.runs.run_records import RunDirectory

SCHEMA = 1

Noted = TypeVar("Noted")


class ListItem(Protocol):
    """An entry of such a list."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""


def read_listed(path: Path, name: str, parse: Callable[[Mapping[str, Any]], Noted]) -> list[Noted]:
    """Return the entries that a run has noted, in order.

    Args:
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
    """Replace the entries that a run has noted."""
    # In one line: of ten thousand nodes each is another line, and written ten times as slowly.
    text = compact({"schema": SCHEMA, name: [item.to_dict() for item in listed]})
    write_durably(path, f"{text}\n".encode())


MAX_QUERIES = 256
MAX_PARTS = 20_000


class RecordedQuery(JsonRecord):
    """A query and its answer.

    Attributes:
        text: The call as written in Puppet code.
        digest: Digest of the answer; `None` without one.
        revision: The revision of the bus that the answer is from, or `None`.
        age: Seconds since the answer was last confirmed as current.
        parts: The parts of the answer by node, each with a short digest; empty beyond
            `MAX_PARTS`.
    """

    function: str
    arguments: tuple[Json, ...]
    text: str
    at: str
    digest: str | None = None
    names: tuple[str, ...] = ()
    revision: int | None = None
    age: float | None = None
    reason: str = ""
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def call(self) -> tuple[str, tuple[Json, ...]]:
        """Return the key by which a repeated query is recognised."""
        return self.function, self.arguments


def read_queries(run: RunDirectory) -> list[RecordedQuery]:
    """Return the queries of a run, in order."""
    return read_listed(run.queries, "queries", RecordedQuery.from_dict)


def note_query(run: RunDirectory, query: RecordedQuery) -> None:
    """Add a query to the record of a run."""
    before = [known_query for known_query in read_queries(run) if known_query.call != query.call]
    if len(before) >= MAX_QUERIES:
        raise InvalidInputError(
            f"the run sends more than {MAX_QUERIES} different queries",
            where=query.text[:80],
            hint="query all nodes once, and select among them in Puppet",
        )
    if sum(len(noted_query.parts) for noted_query in (*before, query)) > MAX_PARTS:
        query = replace(query, parts={})
    write_listed(run.queries, "queries", [*before, query])
