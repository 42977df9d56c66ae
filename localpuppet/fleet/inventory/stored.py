"""A node in the view's database: a row of the table `briefs`, and a packed entry."""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from localpuppet.base.errors import IntegrityError, StateError
from localpuppet.base.formats.names import EnvironmentName, NodeName
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.database import DamagedError
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.entry_brief import EntryBrief, read_roles
from localpuppet.fleet.inventory.index import EXPORTS, NODE, PATHS, ROLE, SERVER, term
from localpuppet.fleet.inventory.reading import Equal
from localpuppet.fleet.inventory.text_cache import TextCache
from localpuppet.fleet.trust.signing import claimed_payload

S = TypeVar("S")
T = TypeVar("T")
# The digest is that of the token.
TABLE = """
CREATE TABLE IF NOT EXISTS briefs (
    node TEXT PRIMARY KEY, at REAL NOT NULL, environment TEXT, roles TEXT NOT NULL,
    facts TEXT NOT NULL, sha256 BLOB NOT NULL
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node's state in the view, without its entry.

    Attributes:
        at: The time of its entry in seconds since 1970, UTC; `None` without an entry.
        exports: The digest of its exports by its entry; `None` without exports.
        refused: Why its newest entry on the bus was rejected; empty if it was accepted.
    """

    at: float | None
    exports: str | None
    refused: str


class EntryReader:
    """Reads and unpacks stored entries.

    Args:
        where: The view's file, for messages.
        problem: Converts an error of the database.
    """

    def __init__(self, where: Path, problem: Callable[[sqlite3.Error], StateError]) -> None:
        self._where = str(where)
        self._problem = problem
        self.written = TextCache()

    def token(self, connection: sqlite3.Connection, node: str) -> bytes:
        """Return the token of a node in the view.

        Raises:
            DamagedError: The node has no entry.
        """
        try:
            row = connection.execute("SELECT token FROM entries WHERE node = ?", (node,)).fetchone()
        except sqlite3.Error as error:
            raise self._problem(error) from error
        if row is None:
            raise DamagedError(f"holds no entry of {node}", where=self._where)
        return bytes(row[0])

    def entry(self, token: bytes) -> InventoryEntry:
        """Return the entry in a token.

        Raises:
            DamagedError: The token has no entry.
        """
        return self.read(token, lambda raw: InventoryEntry.parse_again(claimed_payload(raw)))

    def read(self, stored: S, parse: Callable[[S], T]) -> T:
        """Return the result of `parse` for a stored value.

        Raises:
            DamagedError: The value is damaged.
        """
        try:
            return parse(stored)
        except (ValueError, TypeError, IntegrityError) as error:
            raise DamagedError(f"holds a damaged entry: {error}", where=self._where) from error


class StoredNode:
    """A `InventoryNode`, usable while the connection is open.

    Args:
        row: Its row.
        connection: The connection to the database with its entry.
        unpacking: Unpacks the entry.
    """

    __slots__ = (
        "_connection",
        "_entry",
        "_frequent_facts",
        "_row",
        "_unpacking",
        "at",
        "node",
        "roles",
    )

    def __init__(
        self,
        row: tuple[str, float, str | None, str, str, bytes],
        connection: sqlite3.Connection,
        unpacking: EntryReader,
    ) -> None:
        self._row = row
        self._connection = connection
        self._unpacking = unpacking
        self._entry: InventoryEntry | None = None
        self._frequent_facts: Mapping[str, Json] | None = None
        self.node = NodeName(row[0])
        self.at = row[1]
        self.roles = unpacking.read(row[3], read_roles)

    @property
    def environment(self) -> EnvironmentName | None:
        """Return Puppet's environment; see `InventoryNode`."""
        return None if self._row[2] is None else EnvironmentName(self._row[2])

    @property
    def frequent_facts(self) -> Mapping[str, Json]:
        """Return some facts; see `InventoryNode`."""
        if self._frequent_facts is None:
            self._frequent_facts = self._unpacking.read(self._row[4].encode(), _object)
        return self._frequent_facts

    def entry(self) -> InventoryEntry:
        """Return the whole entry; see `InventoryNode`."""
        if self._entry is None:
            self._entry = self._unpacking.entry(self._token())
        return self._entry

    def written(self, write: Callable[[], str]) -> str:
        """Return the result of `write` for the entry; see `InventoryNode`."""
        return self._unpacking.written.text(self._row[5], write)

    def _token(self) -> bytes:
        return self._unpacking.token(self._connection, self._row[0])


def _object(text: bytes) -> Mapping[str, Json]:
    value = loads_again(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def nodes(
    connection: sqlite3.Connection, where: str, values: Sequence[object], unpacking: EntryReader
) -> Iterator[StoredNode]:
    """Yield nodes, sorted by name.

    Args:
        connection: A snapshot of the view.
        where: The condition in SQL.
        values: The values for its placeholders.
        unpacking: Unpacks entries.
    """
    columns = "node, at, environment, roles, facts, sha256"
    asked = f"SELECT {columns} FROM briefs WHERE {where} ORDER BY node"  # noqa: S608
    for row in connection.execute(asked, values):
        yield StoredNode(row, connection, unpacking)


def standing(
    connection: sqlite3.Connection, nodes: Collection[NodeName]
) -> dict[NodeName, NodeState]:
    """Return the state of nodes in the view."""
    asked = connection.execute(
        "SELECT asked.value, entries.at, term, reason FROM json_each(?) AS asked"
        " LEFT JOIN entries ON entries.node = asked.value"
        " LEFT JOIN index_terms ON index_terms.node = asked.value AND index_terms.path = ?"
        " LEFT JOIN refused ON refused.node = asked.value",
        (json.dumps(list(nodes)), EXPORTS),
    )
    return {
        NodeName(node): NodeState(at=at, exports=exports, refused=reason or "")
        for node, at, exports, reason in asked
    }


def keep(
    connection: sqlite3.Connection, node: str, at: float, brief: EntryBrief, *, token: bytes
) -> None:
    """Write or replace a node's brief."""
    connection.execute(
        "INSERT OR REPLACE INTO briefs VALUES (?, ?, ?, ?, ?, ?)",
        (node, at, brief.environment, brief.roles, brief.facts, sha256(token).digest()),
    )


def drop(connection: sqlite3.Connection, node: str) -> None:
    """Delete a node's brief."""
    connection.execute("DELETE FROM briefs WHERE node = ?", (node,))


def narrowed(equal: Equal) -> tuple[str, list[str]]:
    """Return the SQL conditions for a hint, and their values."""
    where, values = "", list[str]()
    for path, wanted in equal.items():
        is_node = path == NODE  # names are compared as they are, and several may share a term
        terms = {str(value if is_node else term(value)) for value in wanted}
        marks = ", ".join("?" * len(terms))
        if is_node:
            where += f" AND node IN ({marks})"
            values += terms
        elif path in (ROLE, SERVER, *PATHS):
            statement = f"SELECT node FROM index_terms WHERE path = ? AND term IN ({marks})"  # noqa: S608
            where += f" AND node IN ({statement})"
            values += [path, *terms]
    return where, values
