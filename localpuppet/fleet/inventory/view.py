"""The view: this node's copy of what the others said, in SQLite.

Owns: `inventory/view.sqlite` in the state directory: which entry of a node counts, until when the
copy was current, and an index of a few paths. Refuses to know: the bus, signatures (`admission`).

Invariants:

- What is here was believed when it came. An entry that is not believed changes nothing but a line
  that says so: the last one that was stays in force.
- Nothing goes back: an entry, or a tombstone, that is older than the last one seen is refused, also
  after the node was forgotten or its key revoked.
- Only a tombstone, distrust and `inventory.expire` take an entry away; a key that vanishes from the
  bus does not.
- A reader sees the view as it was at one moment, whoever writes meanwhile.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.database import Database, Format
from localpuppet.fleet.inventory import stored
from localpuppet.fleet.inventory.admission import Refused
from localpuppet.fleet.inventory.arrived import Arrived, Kept
from localpuppet.fleet.inventory.brief import KnownNode
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.index import EXPORTS
from localpuppet.fleet.inventory.reading import Equal, Exported, ExportsReader
from localpuppet.fleet.inventory.stored import Standing, narrowed
from localpuppet.fleet.inventory.tombstone import Tombstone

FILE = Path("inventory", "view.sqlite")
MAX_VIEW = 1024 * 1024 * 1024
MAX_REFUSED = 1000
_VERSION = 3
_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    node TEXT PRIMARY KEY, at REAL NOT NULL, token BLOB NOT NULL,
    revision INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS words (
    path TEXT NOT NULL, word TEXT NOT NULL, node TEXT NOT NULL, PRIMARY KEY (path, word, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS words_by_node ON words (node);
CREATE TABLE IF NOT EXISTS seen (
    node TEXT PRIMARY KEY, at REAL NOT NULL, forgotten REAL, forgotten_by TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (
    node TEXT PRIMARY KEY, reason TEXT NOT NULL, since REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (
    one INTEGER PRIMARY KEY, current REAL, revision INTEGER NOT NULL, trust TEXT NOT NULL,
    size INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO state VALUES (1, NULL, 0, '', 0);
"""
_BRIEFS = [stored.TABLE, stored.FILL]
_UPGRADES = {
    1: ["ALTER TABLE entries ADD COLUMN revision INTEGER NOT NULL DEFAULT 0", *_BRIEFS],
    2: _BRIEFS,
}


class View:
    """The copy; an `InventoryReader`.

    Args:
        path: The SQLite file; made when first needed, 0600.
        now: Seconds since 1970, UTC.
        expire: Seconds after which an entry does not count any more; `None` for never.
        exports: What the nodes export; `None` where nobody keeps that.
        most: Bytes of all entries together, as they stand on the bus.
        refusals: Nodes never seen of which it is noted that an entry does not count.
    """

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float],
        expire: float | None = None,
        exports: ExportsReader | None = None,
        most: int = MAX_VIEW,
        refusals: int = MAX_REFUSED,
    ) -> None:
        self._database = Database(
            path,
            Format(tables=stored.TABLE + _TABLES, version=_VERSION, upgrades=_UPGRADES),
            damaged="the agent makes it anew from the bus",
        )
        self._now = now
        self._expire = expire
        self._exports = exports
        self._most = most
        self._refusals = refusals
        self._unpacking = stored.Unpacking(path, self._database.problem)

    @property
    def revision(self) -> int:
        """Return the bus's revision up to which changes are in; see `InventoryReader`."""
        return int(self._state("revision"))

    @property
    def trust(self) -> str:
        """Return the state of the files of trust that everything here was believed by."""
        return str(self._state("trust"))

    def current_until(self) -> float | None:
        """Return when the view was last known to be current; see `InventoryReader`."""
        value = self._state("current")
        return None if value is None else float(value)

    def entries(self, equal: Equal | None = None) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by name; see `InventoryReader`."""
        where, values = self._narrowed(equal or {})
        with self._database.snapshot() as connection:
            rows = connection.execute(
                f"SELECT token FROM entries WHERE {where} ORDER BY node",  # noqa: S608
                values,
            )
            for (token,) in rows:
                yield self._unpacking.entry(token)

    def nodes(self, equal: Equal | None = None) -> Iterator[KnownNode]:
        """Yield nodes, their entries not unpacked yet; see `InventoryReader`."""
        where, values = self._narrowed(equal or {})
        with self._database.snapshot() as connection:
            yield from stored.nodes(connection, where, values, self._unpacking)

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return the entry of a node; see `InventoryReader`."""
        with self._database.snapshot() as connection:
            row = connection.execute(
                "SELECT token FROM entries WHERE node = ? AND at >= ?", (node, self._oldest())
            ).fetchone()
        return None if row is None else self._unpacking.entry(row[0])

    def since(self, revision: int | None) -> set[str]:
        """Return the nodes whose entries came after a revision of the bus; all for `None`."""
        with self._database.snapshot() as connection:
            newer = "SELECT node FROM entries WHERE ?1 IS NULL OR revision > ?1"
            return {node for (node,) in connection.execute(newer, (revision,))}

    def standing(self, nodes: Collection[NodeName]) -> dict[NodeName, Standing]:
        """Return how nodes stand here, all at one moment; nothing of other nodes is read."""
        with self._database.snapshot() as connection:
            return stored.standing(connection, nodes)

    def exporters(self) -> dict[str, str]:
        """Return the nodes that export something, each with the digest that its entry names."""
        with self._database.snapshot() as connection:
            rows = connection.execute("SELECT node, word FROM words WHERE path = ?", (EXPORTS,))
            return dict(rows.fetchall())

    def exporting(self, kind: str | None) -> set[str]:
        """Return the nodes that export something; see `ExportsReader`."""
        return self._kept_exports().exporting(kind)

    def exported(self, node: str, kind: str | None) -> Iterator[Exported]:
        """Yield what a node exports; see `ExportsReader`."""
        return self._kept_exports().exported(node, kind)

    def refused(self) -> list[Refused]:
        """Return the nodes whose entries on the bus do not count, sorted by name."""
        with self._database.snapshot() as connection:
            rows = connection.execute("SELECT node, reason, since FROM refused ORDER BY node")
            return [Refused(node=node, reason=why, since=since) for node, why, since in rows]

    def unknown(self, tokens: Mapping[str, bytes]) -> set[str]:
        """Return the nodes whose tokens are not those that are in force here."""
        with self._database.use() as connection:
            return {
                node
                for node, token in tokens.items()
                if connection.execute(
                    "SELECT token FROM entries WHERE node = ?", (node,)
                ).fetchone()
                != (token,)
            }

    def tokens(self) -> Iterator[tuple[str, bytes]]:
        """Yield each node with the token that is in force."""
        with self._database.snapshot() as connection:
            yield from connection.execute("SELECT node, token FROM entries ORDER BY node")

    def take(self, arrived: Iterable[Arrived], *, revision: int | None = None) -> None:
        """Take what came from the bus, in one transaction; see the module for what counts.

        Args:
            arrived: What came, and is not in force here; each entry is let go before the next.
            revision: The revision of the bus up to which nothing is missing then.

        Raises:
            StateError: The disk refused; nothing was taken.
        """
        kept = [Kept.of(one) for one in arrived]
        if not kept and revision is None:
            return
        with self._database.transaction() as connection:
            connection.execute("UPDATE state SET revision = max(revision, ?)", (revision or 0,))
            for one in kept:
                reason = self._take(connection, one)
                if reason is None:
                    connection.execute("DELETE FROM refused WHERE node = ?", (one.node,))
                else:
                    self._refuse(connection, one.node, reason)

    def forget(self, tombstone: Tombstone, *, by: str) -> bool:
        """Take a node away until it says something newer; return whether it was there.

        Args:
            tombstone: The node, and until when what it said is forgotten.
            by: Who had it forgotten.

        Raises:
            StateError: The disk refused; nothing was taken away.
        """
        node, at = tombstone.node, tombstone.at
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO seen (node, at, forgotten, forgotten_by) VALUES (?, 0, ?, ?)"
                " ON CONFLICT (node) DO UPDATE SET forgotten = excluded.forgotten,"
                " forgotten_by = excluded.forgotten_by"
                " WHERE forgotten IS NULL OR forgotten < excluded.forgotten",
                (node, at, by),
            )
            connection.execute("DELETE FROM refused WHERE node = ?", (node,))
            row = connection.execute("SELECT at FROM entries WHERE node = ?", (node,)).fetchone()
            if row is None or row[0] > at:
                return False
            _remove(connection, node)
            return True

    def distrust(self, node: str, reason: str) -> None:
        """Take a node's entry away because its signer is not trusted any more.

        Raises:
            StateError: The disk refused; the entry is still there.
        """
        with self._database.transaction() as connection:
            _remove(connection, node)
            self._refuse(connection, node, reason)

    def note(
        self,
        *,
        current: float | None = None,
        trust: str | None = None,
        revision: int | None = None,
    ) -> None:
        """Write down until when the view is current, by which trust, and where the bus is.

        Args:
            current: Until when; seconds since 1970, UTC.
            trust: The state of the files of trust.
            revision: Of a whole listing. A bus that was set up anew counts from the beginning, and
                then nothing here came later than its listing.
        """
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE state SET current = coalesce(?, current), trust = coalesce(?, trust),"
                " revision = coalesce(?, revision)",
                (current, trust, revision),
            )
            if revision is not None:
                connection.execute(
                    "UPDATE entries SET revision = ? WHERE revision > ?", (revision, revision)
                )

    def rebuild(self) -> None:
        """Begin anew, with nothing: what was in the file is lost, and comes from the bus again.

        Raises:
            StateError: The file cannot be taken away.
        """
        self._database.remove()

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()

    def _take(self, connection: sqlite3.Connection, one: Kept) -> str | None:
        """Put an entry in force; return why it does not count, if it does not."""
        if one.refusal is not None:
            return one.refusal
        row = connection.execute(
            "SELECT at, forgotten FROM seen WHERE node = ?", (one.node,)
        ).fetchone()
        seen, forgotten = row or (0.0, None)
        if forgotten is not None and one.at <= forgotten:
            return None  # nobody has to hear of it: that is what a tombstone is for
        if one.at < seen:
            return "is older than what the node has said already"
        (size,) = connection.execute("SELECT size FROM state").fetchone()
        if size + len(one.token) > self._most:
            return f"there is no room: the view holds {self._most // 1024**2} MiB"
        _remove(connection, one.node)
        connection.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?)", (one.node, one.at, one.token, one.revision)
        )
        if one.brief is not None:
            stored.keep(connection, one.node, one.at, one.brief, token=one.token)
        connection.executemany(
            "INSERT OR IGNORE INTO words VALUES (?, ?, ?)",
            [(path, text, one.node) for path, text in one.words],
        )
        connection.execute(
            "INSERT INTO seen (node, at) VALUES (?, ?)"
            " ON CONFLICT (node) DO UPDATE SET at = excluded.at",
            (one.node, one.at),
        )
        _grow(connection, len(one.token))
        return None

    def _refuse(self, connection: sqlite3.Connection, node: str, reason: str) -> None:
        """Note why an entry does not count; strangers cannot fill the disk with such lines."""
        connection.execute(
            "INSERT INTO refused SELECT ?, ?, ? WHERE (SELECT count(*) FROM refused) < ?"
            " OR EXISTS (SELECT 1 FROM seen WHERE node = ?)"
            " ON CONFLICT (node) DO UPDATE SET reason = excluded.reason",
            (node, reason, self._now(), self._refusals, node),
        )

    def _kept_exports(self) -> ExportsReader:
        if self._exports is None:
            raise StateError("nobody keeps what nodes export", where=str(self._database.path))
        return self._exports

    def _narrowed(self, equal: Equal) -> tuple[str, list[object]]:
        """Return the conditions that a hint makes, in SQL, and their values."""
        where, values = narrowed(equal)
        return f"at >= ?{where}", [self._oldest(), *values]

    def _oldest(self) -> float:
        return 0.0 if self._expire is None else self._now() - self._expire

    def _state(self, column: str) -> Any:  # noqa: ANN401 - the column's type
        with self._database.use() as connection:
            return connection.execute(f"SELECT {column} FROM state").fetchone()[0]  # noqa: S608


def _remove(connection: sqlite3.Connection, node: str) -> None:
    row = connection.execute(
        "DELETE FROM entries WHERE node = ? RETURNING length(token)", (node,)
    ).fetchall()
    if row:
        connection.execute("DELETE FROM words WHERE node = ?", (node,))
        stored.drop(connection, node)
        _grow(connection, -row[0][0])


def _grow(connection: sqlite3.Connection, size: int) -> None:
    connection.execute("UPDATE state SET size = size + ?", (size,))
