"""The view: this node's copy of the inventory in `inventory/view.sqlite` of the state directory.

- All entries in the view were accepted when they arrived (`admission`). A rejected entry adds only
  a line with the reason; the last accepted one remains.
- Entries and tombstones do not go back in time: older ones than the last are rejected, even after
  the node was forgotten or its key revoked.
- Only a tombstone, lost trust or `inventory.expire` removes an entry; a key that vanishes from the
  bus does not.
- A reader sees the view of one moment, whatever is written meanwhile.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from localpuppet.base.errors import IntegrityError, StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.sqlite import Connection, DamagedError, Database, Format
from localpuppet.base.value import Value
from localpuppet.fleet.inventory import tables
from localpuppet.fleet.inventory.admission import ReceivedEntry, RefusedEntry, Tombstone
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.reading import ExportsReader
from localpuppet.fleet.inventory.tables import EntryRows, NodeBrief
from localpuppet.fleet.trust.signing import claimed_payload, with_base64, without_base64

FILE = Path("inventory", "view.sqlite")
MAX_VIEW = 1024 * 1024 * 1024
MAX_REFUSED = 1000
# Entries in one transaction: a larger one would need a large log.
AT_ONCE = 500
_KNOWN = (
    "SELECT seen.node, seen.at, forgotten, coalesce(length(token), 0) FROM seen LEFT JOIN entries"
    " USING (node) WHERE seen.node IN (SELECT value FROM json_each(?))"
)
STANDING = (
    "SELECT asked.value, at, exports, reason FROM json_each(?) AS asked"
    " LEFT JOIN nodes ON certname = asked.value LEFT JOIN refused ON refused.node = asked.value"
)
_VERSION = 8
# `restore` writes the rows.
_WITHOUT_ROWS = "UPDATE state SET current = NULL;" + "".join(  # noqa: S608
    f"DROP TABLE IF EXISTS {table};"
    for table in ("briefs", "index_terms", "facts", "legacy", *tables.NAMES)
)
_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    node TEXT PRIMARY KEY, at REAL NOT NULL, token BLOB NOT NULL,
    revision INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS seen (
    node TEXT PRIMARY KEY, at REAL NOT NULL, forgotten REAL, forgotten_by TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_forgotten ON seen (node) WHERE forgotten IS NOT NULL;
CREATE TABLE IF NOT EXISTS refused (
    node TEXT PRIMARY KEY, reason TEXT NOT NULL, since REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (
    one INTEGER PRIMARY KEY, current REAL, revision INTEGER NOT NULL, trust TEXT NOT NULL,
    size INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO state VALUES (1, NULL, 0, '', 0);
"""


class NodeState(Value):
    """A node's state in the view, without its entry; `refused` if its newest one was rejected."""

    at: float | None
    exports: str | None
    refused: str


class View:
    """This node's copy of the inventory, an `InventoryReader`.

    Args:
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
            Format(
                tables=tables.TABLES + _TABLES,
                version=_VERSION,
                conversions=dict.fromkeys((4, 5, 6, 7), _WITHOUT_ROWS),
            ),
            damaged="the agent rebuilds it from the bus",
        )
        self._now = now
        self._expire = expire
        self._exports = exports
        self._most = most
        self._refusals = refusals

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

    def entries(self) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by name; see `InventoryReader`."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                "SELECT token FROM entries WHERE at >= ? ORDER BY node", (self._oldest(),)
            )
            for (token,) in rows:
                yield self._entry(token)

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return the entry of a node; see `InventoryReader`."""
        found = "SELECT token FROM entries WHERE node = ? AND at >= ?"
        tokens = self._read(found, node, self._oldest())
        return self._entry(tokens[0][0]) if tokens else None

    def nodes(self, names: Collection[str] | None = None) -> Iterator[NodeBrief]:
        """Yield nodes without their facts; see `InventoryReader`."""
        with self.rows() as connection:
            yield from tables.briefs(connection, names)

    @contextmanager
    def rows(self, own: EntryRows | None = None, *, exports: bool = False) -> Iterator[Connection]:
        """Lend the rows; see `InventoryReader`."""

        def prepare(connection: Connection) -> None:
            tables.attach(connection, self._oldest(), own)
            if exports and self._exports is None:
                raise StateError(
                    "exports of other nodes are not stored here", where=str(self._database.path)
                )
            if exports and self._exports is not None:
                self._exports.attach(connection)

        with self._database.snapshot(prepare) as connection:
            yield connection

    def check(self) -> None:
        """Do not end a question early; see `InventoryReader`."""

    def since(self, revision: int | None) -> set[str]:
        """Return the nodes with entries after a revision of the bus; all for `None`."""
        newer = "SELECT node FROM entries WHERE ?1 IS NULL OR revision > ?1"
        return {node for (node,) in self._read(newer, revision)}

    def settled(self) -> set[str]:
        """Return the nodes with an entry, and those that were rejected or forgotten."""
        rows = self._read(
            "SELECT node FROM entries UNION SELECT node FROM refused"
            " UNION SELECT node FROM seen WHERE forgotten IS NOT NULL"
        )
        return {node for (node,) in rows}

    def forgotten(self) -> set[str]:
        """Return the nodes that were forgotten and have not published a later entry."""
        rows = self._read(
            "SELECT node FROM seen WHERE forgotten IS NOT NULL"
            " AND node NOT IN (SELECT node FROM entries)"
        )
        return {node for (node,) in rows}

    def standing(self, nodes: Collection[NodeName]) -> dict[NodeName, NodeState]:
        """Return the state of the given nodes, all at one moment."""
        return {
            NodeName(node): NodeState(at=at, exports=exports, refused=reason or "")
            for node, at, exports, reason in self._read(STANDING, json.dumps(list(nodes)))
        }

    def exporters(self) -> dict[str, str]:
        """Return the nodes with exports, each with the digest in its entry."""
        return self._digests("exports")

    def catalogs(self) -> dict[str, str]:
        """Return the nodes that publish their catalog, each with the digest in its entry."""
        return self._digests("catalog")

    def refused(self) -> list[RefusedEntry]:
        """Return the nodes whose entries on the bus were rejected, sorted by name."""
        rows = self._read("SELECT node, reason, since FROM refused ORDER BY node")
        return [RefusedEntry(node=node, reason=why, since=since) for node, why, since in rows]

    def unknown(self, tokens: Mapping[str, bytes]) -> set[str]:
        """Return the nodes whose tokens differ from the accepted ones."""
        accepted = "SELECT token FROM entries WHERE node = ?"
        with self._database.use() as connection:
            return {
                node
                for node, token in tokens.items()
                if (row := connection.execute(accepted, (node,)).fetchone()) is None
                or with_base64(row[0]) != token
            }

    def tokens(self) -> Iterator[tuple[str, bytes]]:
        """Yield each node with its accepted token."""
        with self._database.snapshot() as connection:
            for node, stored in connection.execute("SELECT node, token FROM entries ORDER BY node"):
                yield node, with_base64(stored)

    def take(self, arrived: Iterable[ReceivedEntry], *, revision: int | None = None) -> None:
        """Store entries from the bus, each released before the next; the module lists the rules.

        `revision` is that of the bus up to which the view is complete afterwards.
        """
        waiting = iter(arrived)
        while True:
            kept = list(islice(waiting, AT_ONCE))
            is_last = len(kept) < AT_ONCE
            with self._database.transaction() as connection:
                self._take(connection, kept)
                if is_last:
                    complete = "UPDATE state SET revision = max(revision, ?)"
                    connection.execute(complete, (revision or 0,))
            if is_last:
                return

    def restore(self) -> None:
        """Write the rows of stored entries that have none, such as after an upgrade."""
        without = "SELECT token FROM entries WHERE node NOT IN (SELECT certname FROM nodes) LIMIT ?"
        while True:
            with self._database.transaction() as connection:
                tokens = connection.execute(without, (AT_ONCE,)).fetchall()
                rows = [EntryRows.of(self._entry(token)) for (token,) in tokens]
                tables.write(connection, rows)
            if not tokens:
                return

    def forget(self, tombstone: Tombstone, *, by: str) -> bool:
        """Remove a node until it publishes a newer entry; return whether it had one."""
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
        """Delete all entries, which come from the bus again.

        What it knows about the times of entries is kept, unless it cannot be read any more.
        """
        seen, refused = list[tuple[object, ...]](), list[tuple[object, ...]]()
        with suppress(DamagedError), self._database.snapshot() as connection:
            seen = connection.execute("SELECT * FROM seen").fetchall()
            refused = connection.execute("SELECT * FROM refused").fetchall()

        def fill(connection: Connection) -> None:
            connection.executemany("INSERT INTO seen VALUES (?, ?, ?, ?)", seen)
            connection.executemany("INSERT INTO refused VALUES (?, ?, ?)", refused)

        self._database.replace(fill)

    def close(self) -> None:
        """Close the database; the next call opens it again."""
        self._database.close()

    def _take(self, connection: Connection, kept: Sequence[ReceivedEntry]) -> None:
        """Store entries, or record why they are rejected."""
        taken: dict[str, tuple[bytes, int, EntryRows]] = {}
        reasons: dict[str, str] = {}
        names = (json.dumps([entry.node for entry in kept]),)
        known = {node: before for node, *before in connection.execute(_KNOWN, names)}
        (size,) = connection.execute("SELECT size FROM state").fetchone()
        for entry in kept:
            node, found = entry.node, entry.found
            at, forgotten, stored = known.get(node, (0.0, None, 0))
            token = without_base64(entry.token) if isinstance(found, EntryRows) else b""
            larger = size + len(token) - stored
            reasons[node] = ""
            if not isinstance(found, EntryRows):
                reasons[node] = found
            elif forgotten is not None and found.at <= forgotten:
                pass  # a tombstone needs no further line
            elif found.at < at:
                reasons[node] = "is older than an entry that the node published before"
            elif larger > self._most:
                reasons[node] = f"no space left: the view holds {self._most // 1024**2} MiB"
            else:
                size, taken[node] = larger, (token, entry.revision, found)
                known[node] = [found.at, forgotten, len(token)]
        connection.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT (node) DO UPDATE"
            " SET at = excluded.at, token = excluded.token, revision = excluded.revision",
            ((node, rows.at, token, revision) for node, (token, revision, rows) in taken.items()),
        )
        tables.write(connection, [rows for _, _, rows in taken.values()])
        connection.executemany(
            "INSERT INTO seen (node, at) VALUES (?, ?)"
            " ON CONFLICT (node) DO UPDATE SET at = excluded.at",
            ((node, rows.at) for node, (_, _, rows) in taken.items()),
        )
        connection.execute("UPDATE state SET size = ?", (size,))
        for node, reason in reasons.items():
            if reason:
                self._refuse(connection, node, reason)
        connection.executemany(
            "DELETE FROM refused WHERE node = ?", ((node,) for node in reasons if not reasons[node])
        )

    def _refuse(self, connection: Connection, node: str, reason: str) -> None:
        """Record why an entry was rejected; the limit keeps strangers from filling the disk."""
        connection.execute(
            "INSERT INTO refused SELECT ?, ?, ? WHERE (SELECT count(*) FROM refused) < ?"
            " OR EXISTS (SELECT 1 FROM seen WHERE node = ?)"
            " ON CONFLICT (node) DO UPDATE SET reason = excluded.reason",
            (node, reason, self._now(), self._refusals, node),
        )

    def _digests(self, column: str) -> dict[str, str]:
        known = f"SELECT certname, {column} FROM nodes WHERE {column} IS NOT NULL"  # noqa: S608
        return dict(self._read(known))

    def _read(self, question: str, *values: object) -> list[Any]:
        with self._database.snapshot() as connection:
            return connection.execute(question, values).fetchall()

    def _entry(self, token: bytes) -> InventoryEntry:
        try:
            return InventoryEntry.parse_again(claimed_payload(with_base64(token)))
        except (ValueError, IntegrityError) as error:
            raise DamagedError(
                f"holds a damaged entry: {error}", where=str(self._database.path)
            ) from error

    def _oldest(self) -> float:
        return 0.0 if self._expire is None else self._now() - self._expire

    def _state(self, column: str) -> Any:  # noqa: ANN401 - the column's type
        with self._database.use() as connection:
            return connection.execute(f"SELECT {column} FROM state").fetchone()[0]  # noqa: S608


def _remove(connection: Connection, node: str) -> None:
    tables.remove(connection, node)
    (size,) = connection.execute(
        "SELECT sum(length(token)) FROM entries WHERE node = ?", (node,)
    ).fetchone()
    connection.execute("UPDATE state SET size = size - ?", (size or 0,))
    connection.execute("DELETE FROM entries WHERE node = ?", (node,))
