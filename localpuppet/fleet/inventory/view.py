"""The view: this node's copy of the inventory in `inventory/view.sqlite` of the state directory.

- All entries in the view were accepted when they arrived (`admission`). A rejected entry adds only
  a line with the reason; the last accepted one remains.
- Entries and tombstones do not go back in time: older ones than the last are rejected, even after
  the node was forgotten or its key revoked.
- Only a tombstone, lost trust or `inventory.expire` removes an entry; a key that vanishes from the
  bus does not.
- A reader sees the view of one moment, whatever is written meanwhile.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.database import Database, Format
from localpuppet.fleet.inventory import stored
from localpuppet.fleet.inventory.admission import RefusedEntry
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.entry_brief import InventoryNode
from localpuppet.fleet.inventory.index import CATALOG, EXPORTS
from localpuppet.fleet.inventory.reading import Equal, ExportsReader, ResourceOffer
from localpuppet.fleet.inventory.received_entry import ReceivedEntry, StoredEntry
from localpuppet.fleet.inventory.stored import NodeState, narrowed
from localpuppet.fleet.inventory.tombstone import Tombstone

FILE = Path("inventory", "view.sqlite")
MAX_VIEW = 1024 * 1024 * 1024
MAX_REFUSED = 1000
_VERSION = 4
_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    node TEXT PRIMARY KEY, at REAL NOT NULL, token BLOB NOT NULL,
    revision INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS index_terms (
    path TEXT NOT NULL, term TEXT NOT NULL, node TEXT NOT NULL, PRIMARY KEY (path, term, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS index_terms_by_node ON index_terms (node);
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


class View:
    """This node's copy of the inventory, an `InventoryReader`.

    Args:
        path: The SQLite file, created on first use with mode 0600.
        now: Returns seconds since 1970, UTC.
        expire: Seconds after which an entry expires; `None` for never.
        exports: The exports of nodes; `None` if they are not stored.
        most: The limit in bytes of all entries together, as on the bus.
        refusals: The limit of unknown nodes whose rejected entries are recorded.
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
            Format(tables=stored.TABLE + _TABLES, version=_VERSION),
            damaged="the agent rebuilds it from the bus",
        )
        self._now = now
        self._expire = expire
        self._exports = exports
        self._most = most
        self._refusals = refusals
        self._unpacking = stored.EntryReader(path, self._database.problem)

    @property
    def revision(self) -> int:
        """Return the bus's revision up to which changes are included; see `InventoryReader`."""
        return int(self._state("revision"))

    @property
    def trust(self) -> str:
        """Return the state of the trust files that all entries were verified with."""
        return str(self._state("trust"))

    def current_until(self) -> float | None:
        """Return when the view was last current; see `InventoryReader`."""
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

    def nodes(self, equal: Equal | None = None) -> Iterator[InventoryNode]:
        """Yield nodes with packed entries; see `InventoryReader`."""
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
        """Return the nodes with entries after a revision of the bus; all for `None`."""
        with self._database.snapshot() as connection:
            newer = "SELECT node FROM entries WHERE ?1 IS NULL OR revision > ?1"
            return {node for (node,) in connection.execute(newer, (revision,))}

    def settled(self) -> set[str]:
        """Return the nodes with an entry, and those that were rejected or forgotten."""
        with self._database.snapshot() as connection:
            return {
                node
                for (node,) in connection.execute(
                    "SELECT node FROM entries UNION SELECT node FROM refused"
                    " UNION SELECT node FROM seen WHERE forgotten IS NOT NULL"
                )
            }

    def standing(self, nodes: Collection[NodeName]) -> dict[NodeName, NodeState]:
        """Return the state of the given nodes, all at one moment."""
        with self._database.snapshot() as connection:
            return stored.standing(connection, nodes)

    def exporters(self) -> dict[str, str]:
        """Return the nodes with exports, each with the digest in its entry."""
        return self._digests(EXPORTS)

    def catalogs(self) -> dict[str, str]:
        """Return the nodes that publish their catalog, each with the digest in its entry."""
        return self._digests(CATALOG)

    def exporting(self, kind: str | None) -> set[str]:
        """Return the nodes that export resources; see `ExportsReader`."""
        return self._kept_exports().exporting(kind)

    def exported(self, node: str, kind: str | None) -> Iterator[ResourceOffer]:
        """Yield a node's exported resources; see `ExportsReader`."""
        return self._kept_exports().exported(node, kind)

    def refused(self) -> list[RefusedEntry]:
        """Return the nodes whose entries on the bus were rejected, sorted by name."""
        with self._database.snapshot() as connection:
            rows = connection.execute("SELECT node, reason, since FROM refused ORDER BY node")
            return [RefusedEntry(node=node, reason=why, since=since) for node, why, since in rows]

    def unknown(self, tokens: Mapping[str, bytes]) -> set[str]:
        """Return the nodes whose tokens differ from the accepted ones."""
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
        """Yield each node with its accepted token."""
        with self._database.snapshot() as connection:
            yield from connection.execute("SELECT node, token FROM entries ORDER BY node")

    def take(self, arrived: Iterable[ReceivedEntry], *, revision: int | None = None) -> None:
        """Store entries from the bus in one transaction; the module lists the rules.

        Args:
            arrived: New entries; each is released before the next.
            revision: The revision of the bus up to which the view is complete afterwards.
        """
        kept = [StoredEntry.of(item) for item in arrived]
        if not kept and revision is None:
            return
        with self._database.transaction() as connection:
            connection.execute("UPDATE state SET revision = max(revision, ?)", (revision or 0,))
            for entry in kept:
                reason = self._take(connection, entry)
                if reason is None:
                    connection.execute("DELETE FROM refused WHERE node = ?", (entry.node,))
                else:
                    self._refuse(connection, entry.node, reason)

    def forget(self, tombstone: Tombstone, *, by: str) -> bool:
        """Remove a node until it publishes a newer entry; return whether it had one.

        Args:
            tombstone: The node, and the time of the tombstone.
            by: The signer of the tombstone.
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
        """Remove a node's entry because its signer is no longer trusted."""
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
        """Record when the view was current, its trust state, and the bus's revision.

        Args:
            current: When the view was current, in seconds since 1970, UTC.
            trust: The state of the trust files.
            revision: The revision of a complete listing. A bus that was set up again restarts its
                revisions, and then no stored entry is newer than the listing.
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
        """Delete the database; its contents come from the bus again."""
        self._database.remove()

    def close(self) -> None:
        """Close the database; the next call opens it again."""
        self._database.close()

    def _take(self, connection: sqlite3.Connection, entry: StoredEntry) -> str | None:
        """Store an entry; return why it is rejected, or `None`."""
        if entry.refusal is not None:
            return entry.refusal
        row = connection.execute(
            "SELECT at, forgotten FROM seen WHERE node = ?", (entry.node,)
        ).fetchone()
        seen, forgotten = row or (0.0, None)
        if forgotten is not None and entry.at <= forgotten:
            return None  # a tombstone needs no further line
        if entry.at < seen:
            return "is older than an entry that the node published before"
        (size,) = connection.execute("SELECT size FROM state").fetchone()
        if size + len(entry.token) > self._most:
            return f"no space left: the view holds {self._most // 1024**2} MiB"
        _remove(connection, entry.node)
        connection.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?)",
            (entry.node, entry.at, entry.token, entry.revision),
        )
        if entry.brief is not None:
            stored.keep(connection, entry.node, entry.at, entry.brief, token=entry.token)
        connection.executemany(
            "INSERT OR IGNORE INTO index_terms VALUES (?, ?, ?)",
            [(path, text, entry.node) for path, text in entry.terms],
        )
        connection.execute(
            "INSERT INTO seen (node, at) VALUES (?, ?)"
            " ON CONFLICT (node) DO UPDATE SET at = excluded.at",
            (entry.node, entry.at),
        )
        _grow(connection, len(entry.token))
        return None

    def _refuse(self, connection: sqlite3.Connection, node: str, reason: str) -> None:
        """Record why an entry was rejected; the limit keeps strangers from filling the disk."""
        connection.execute(
            "INSERT INTO refused SELECT ?, ?, ? WHERE (SELECT count(*) FROM refused) < ?"
            " OR EXISTS (SELECT 1 FROM seen WHERE node = ?)"
            " ON CONFLICT (node) DO UPDATE SET reason = excluded.reason",
            (node, reason, self._now(), self._refusals, node),
        )

    def _digests(self, path: str) -> dict[str, str]:
        with self._database.snapshot() as connection:
            rows = connection.execute("SELECT node, term FROM index_terms WHERE path = ?", (path,))
            return dict(rows.fetchall())

    def _kept_exports(self) -> ExportsReader:
        if self._exports is None:
            raise StateError(
                "exports of other nodes are not stored here", where=str(self._database.path)
            )
        return self._exports

    def _narrowed(self, equal: Equal) -> tuple[str, list[object]]:
        """Return the SQL conditions for a hint, and their values."""
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
        connection.execute("DELETE FROM index_terms WHERE node = ?", (node,))
        stored.drop(connection, node)
        _grow(connection, -row[0][0])


def _grow(connection: sqlite3.Connection, size: int) -> None:
    connection.execute("UPDATE state SET size = size + ?", (size,))
