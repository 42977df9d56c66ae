"""The exports of other nodes: brought over the bus, stored in `exports/held.sqlite`.

- All stored exports were named by an accepted entry. If newer exports are rejected, the stored ones
  remain and the rejection is recorded.
- A reader sees all or none of a node's exports, and a snapshot of all nodes.
- If a node's exports could never be read from the bus, a search raises an error and does not return
  an empty result.
- All nodes together have at most `MAX_HELD` bytes.
- A reader stores fetched bytes only if they have the digest of the accepted entry. Otherwise it
  keeps the stored exports of this node and logs the reason; other nodes are not affected.
- If the bus denies a read or does not answer, the follower tries again at the next update. A
  collector is warned if it gets older exports of a node; if none are stored, it gets an error and
  not an empty answer (`held`).
- If nothing is stored yet, no collector gets an answer before all exports of the view were fetched.
"""

import asyncio
import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from random import SystemRandom

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.machine.sqlite import DamagedError, Database, Format, sqlite3
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_PACKED_EXPORTS
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import exports_of
from localpuppet.fleet.exports.resource import ExportedResource, Offer, unpack
from localpuppet.fleet.inventory.chunks import ChunkOutbox, ChunkWriter, fetch_chunks
from localpuppet.fleet.inventory.entry import ExportsSummary
from localpuppet.fleet.inventory.view import View

FILE = Path("exports", "held.sqlite")
# Bytes of JSON, of all nodes.
MAX_HELD = 1024 * 1024 * 1024
NO_ROOM = f"no space left: all nodes together may use {MAX_HELD // 1024**2} MiB"
_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS nodes (
    node TEXT PRIMARY KEY, digest TEXT NOT NULL, size INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS resources (
    id INTEGER PRIMARY KEY, node TEXT NOT NULL, type TEXT NOT NULL, title TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS resources_by_type ON resources (type, title, node);
CREATE INDEX IF NOT EXISTS resources_by_node ON resources (node, type, title);
CREATE TABLE IF NOT EXISTS tags (
    type TEXT NOT NULL, tag TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (type, tag, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tags_by_id ON tags (id);
CREATE TABLE IF NOT EXISTS refused (
    node TEXT PRIMARY KEY, digest TEXT NOT NULL, reason TEXT NOT NULL, tries INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY, size INTEGER NOT NULL) STRICT;
INSERT OR IGNORE INTO state VALUES (1, 0);
"""


class NodeExports(Value):
    """All exports of a node: type, title, tags and JSON of each resource."""

    node: str
    digest: str
    rows: tuple[tuple[str, str, tuple[str, ...], str], ...]

    @classmethod
    def of(cls, node: str, digest: str, resources: Sequence[ExportedResource]) -> "NodeExports":
        """Return the rows of a node's resources."""
        rows = (
            (resource.type, resource.title, resource.tags, json.dumps(resource.to_dict()))
            for resource in resources
        )
        return cls(node=node, digest=digest, rows=tuple(rows))

    @property
    def size(self) -> int:
        """Return the bytes that count towards `MAX_HELD`."""
        return sum(len(body) for *_, body in self.rows)


class RefusedExports(Value):
    """A node whose latest exports were refused while the bus was reachable; older ones remain."""

    node: str
    digest: str
    reason: str
    tries: int


class HeldExports:
    """The database of stored exports, 0600: at most `most` bytes for all nodes together."""

    def __init__(self, path: Path, *, most: int = MAX_HELD) -> None:
        self._most = most
        self._database = Database(
            path,
            Format(tables=_TABLES, version=_VERSION),
            damaged="the agent rebuilds it from the bus",
        )

    def digests(self) -> dict[str, str]:
        """Return the digest of the stored exports of each node."""
        with self._database.snapshot() as connection:
            return dict(connection.execute("SELECT node, digest FROM nodes").fetchall())

    def hold(self, node: str, digest: str, resources: Sequence[ExportedResource]) -> None:
        """Replace the stored exports of a node; raise `InvalidInputError` if they are too large."""
        if self.hold_all([NodeExports.of(node, digest, resources)]):
            raise InvalidInputError(NO_ROOM)

    def hold_all(self, nodes: Sequence[NodeExports]) -> list[NodeExports]:
        """Replace the exports of several nodes in one transaction; return those above the limit."""
        left = []
        with self._database.transaction() as connection:
            for exports in nodes:
                connection.execute("SAVEPOINT node")
                _remove(connection, exports.node)
                (size,) = connection.execute("SELECT size FROM state").fetchone()
                fits = size + exports.size <= self._most
                if fits:
                    _insert(connection, exports)
                else:
                    left.append(exports)
                    connection.execute("ROLLBACK TO node")
                connection.execute("RELEASE node")
        return left

    def drop(self, node: str) -> None:
        """Remove everything that is stored about a node."""
        with self._database.transaction() as connection:
            _remove(connection, node)
            connection.execute("DELETE FROM refused WHERE node = ?", (node,))

    def refuse(self, node: str, digest: str, reason: str, *, tried: bool) -> None:
        """Record that the latest exports of a node were not taken; stored ones remain.

        `tried` is whether the bus was reachable and the exports are invalid.
        """
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO refused VALUES (?, ?, ?, ?) ON CONFLICT (node) DO UPDATE SET"
                " tries = excluded.tries + CASE WHEN digest = excluded.digest THEN tries ELSE 0"
                " END, digest = excluded.digest, reason = excluded.reason"
                # A repeated reason is not synced to disk.
                " WHERE excluded.tries > 0 OR digest <> excluded.digest"
                " OR reason <> excluded.reason",
                (node, digest, reason, int(tried)),
            )

    def note_unread(self, nodes: Iterable[tuple[str, str]], reason: str) -> None:
        """Record that exports, by node and digest, were not read yet, unless some are known.

        A search then fails instead of finding none.
        """
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO refused SELECT ?1, ?2, ?3, 0"
                " WHERE ?1 NOT IN (SELECT node FROM nodes)",
                [(node, digest, reason) for node, digest in nodes],
            )

    def refused(self) -> dict[str, RefusedExports]:
        """Return the nodes whose latest exports were rejected or not read."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                "SELECT node, digest, reason, tries FROM refused ORDER BY node"
            )
            return {
                node: RefusedExports(node=node, digest=digest, reason=reason, tries=tries)
                for node, digest, reason, tries in rows
            }

    def missing(self, wanted: Mapping[NodeName, str]) -> set[NodeName]:
        """Return the nodes whose exports of that digest were neither fetched nor rejected."""
        with self._database.snapshot() as connection:
            come = (
                "SELECT 1 FROM nodes WHERE node = ?1 AND digest = ?2 UNION ALL"
                " SELECT 1 FROM refused WHERE node = ?1 AND digest = ?2 AND tries > 0"
            )
            return {
                node
                for node, digest in wanted.items()
                if connection.execute(come, (node, digest)).fetchone() is None
            }

    def find(
        self, *, node: str | None = None, kind: str | None = None, tag: str | None = None
    ) -> Generator[Offer, None, None]:
        """Yield a snapshot of the stored resources, sorted by type, title and node.

        A tag requires a type. If the exports of one of these nodes were never read, it raises
        `UnavailableError`.
        """
        tables, conditions, values = "resources", ["1"], []
        for condition, value in (("node = ?", node), ("resources.type = ?", kind)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        if kind is not None and tag is not None:
            # Join the tags first: SQLite would otherwise scan the whole type, as it is sorted.
            tables = "tags CROSS JOIN resources USING (id)"
            conditions.append("tags.type = ? AND tag = ?")
            values += [kind, tag]
        with self._database.snapshot() as connection:
            _refuse_unread(connection, node)
            rows = connection.execute(
                f"SELECT node, body FROM {tables} WHERE {' AND '.join(conditions)}"  # noqa: S608
                " ORDER BY resources.type, title, node",
                values,
            )
            for name, body in rows:
                yield Offer(node=name, resource=self._read(body), size=len(body))

    def attach(self, connection: sqlite3.Connection) -> None:
        """Attach the database to a connection as `held`; see `fleet.inventory.reading`."""
        with self._database.use():
            pass  # creates the file
        connection.execute(
            "ATTACH ? AS held", (f"{self._database.path.absolute().as_uri()}?mode=rw",)
        )
        _refuse_unread(connection, None, "held.")

    def rebuild(self) -> None:
        """Delete the database; the agent fetches all exports from the bus again."""
        self._database.remove()

    def close(self) -> None:
        """Close the database; the next call opens it again."""
        self._database.close()

    def _read(self, body: str) -> ExportedResource:
        try:
            return ExportedResource.parse_again(loads_again(body.encode()))
        except ValueError as error:
            raise DamagedError(
                f"holds a damaged resource: {error}", where=str(self._database.path)
            ) from error


def _refuse_unread(connection: sqlite3.Connection, node: str | None, schema: str = "") -> None:
    """Raise an error if the exports of a node could never be read."""
    row = connection.execute(
        f"SELECT node, reason FROM {schema}refused WHERE tries = 0 AND node = coalesce(?, node)"  # noqa: S608
        f" AND node NOT IN (SELECT node FROM {schema}nodes) ORDER BY node LIMIT 1",
        (node,),
    ).fetchone()
    if row is not None:
        raise UnavailableError(f"what {row[0]} exports was never read: {row[1]}")


def _remove(connection: sqlite3.Connection, node: str) -> None:
    row = connection.execute("DELETE FROM nodes WHERE node = ? RETURNING size", (node,)).fetchall()
    if not row:
        return
    connection.execute(
        "DELETE FROM tags WHERE id IN (SELECT id FROM resources WHERE node = ?)", (node,)
    )
    connection.execute("DELETE FROM resources WHERE node = ?", (node,))
    connection.execute("UPDATE state SET size = size - ?", (row[0][0],))


def _insert(connection: sqlite3.Connection, exports: NodeExports) -> None:
    connection.execute(
        "INSERT INTO nodes VALUES (?, ?, ?)", (exports.node, exports.digest, exports.size)
    )
    connection.execute("UPDATE state SET size = size + ?", (exports.size,))
    for kind, title, tags, body in exports.rows:
        row = connection.execute(
            "INSERT INTO resources (node, type, title, body) VALUES (?, ?, ?, ?)",
            (exports.node, kind, title, body),
        ).lastrowid
        connection.executemany(
            "INSERT INTO tags VALUES (?, ?, ?)", [(kind, tag, row) for tag in tags]
        )
    connection.execute("DELETE FROM refused WHERE node = ?", (exports.node,))


# Nodes whose exports are fetched at the same time, and nodes stored in one transaction.
AT_ONCE = 16
MAX_TOGETHER = 256
# Bytes of JSON that wait for one transaction; they limit the memory next to the node being
# unpacked.
MAX_WAITING = 4 * 1024 * 1024
# A server of a cluster may lag: look this often for the chunks of an entry, once with each update.
# After that, look once in `SELDOM` seconds, as a bus that lost them gets them again.
MAX_TRIES = 5
SELDOM = 3600.0
_CHANCE = SystemRandom()


def exports_writer(node: NodeName, outbox: ChunkOutbox) -> ChunkWriter:
    return ChunkWriter(
        prefix=exports_of(node), outbox=outbox, named=lambda entry: entry.exports.digest
    )


class _Fetched(Value):
    """The exports that an entry names, as fetched from the bus."""

    node: str
    summary: ExportsSummary
    data: bytes

    def unpacked(self) -> NodeExports:
        """Unpack the exports; raise `InvalidInputError` if the bytes do not match the entry."""
        resources = unpack(self.data)
        if len(resources) != self.summary.count:
            raise InvalidInputError(
                f"{len(resources)} resources; the node's entry names {self.summary.count}"
            )
        return NodeExports.of(self.node, str(self.summary.digest), resources)


@dataclass(slots=True, eq=False)
class ExportsFollower:
    """Stores the exports that the entries of the view name; the inventory's `Companion`.

    It stores `together` nodes in one transaction: a first listing does not wait for the disk often.
    """

    view: View
    held: HeldExports
    _: KW_ONLY
    log: Log
    at_once: int = AT_ONCE
    together: int = MAX_TOGETHER
    seconds: Callable[[], float] = time.monotonic
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _logged_reasons: dict[str, str] = field(default_factory=dict, init=False)
    _looked: dict[str, float] = field(default_factory=dict, init=False)
    # Nodes dropped since the round began: their pending exports are not stored.
    _gone: set[str] = field(default_factory=set, init=False)

    def drop(self, node: str) -> None:
        """Remove the exports of a node that left the view; see `Companion`."""
        self._logged_reasons.pop(node, None)
        self._looked.pop(node, None)
        self._gone.add(node)
        self.held.drop(node)

    async def update(self, kv: KeyValue) -> bool:
        """Fetch missing exports and remove those that no entry names; see `Companion`."""
        async with self._turn:
            try:
                return await self._update(kv)
            except DamagedError as error:
                self.log.warning(f"fetching all exports again: {error}", kind=LineKind.INVENTORY)
                self.held.rebuild()
                return await self._update(kv)

    async def _update(self, kv: KeyValue) -> bool:
        missing, changed = await asyncio.to_thread(self._missing)
        _CHANCE.shuffle(missing)  # so that each node is sometimes first
        waiting: list[NodeExports] = []
        for begin in range(0, len(missing), self.at_once):
            fetched = await asyncio.gather(
                *(self._fetch(kv, node, digest) for node, digest in missing[begin:][: self.at_once])
            )
            outages = [result for result in fetched if isinstance(result, UnavailableError)]
            unreachable = len(outages) == len(fetched)
            if unreachable:
                rest = missing[begin + self.at_once :]
                await asyncio.to_thread(self.held.note_unread, rest, one_line(str(outages[0])))
            last = unreachable or begin + self.at_once >= len(missing)
            came = [exports for exports in fetched if isinstance(exports, _Fetched)]
            changed = await asyncio.to_thread(self._hold, waiting, came, last=last) or changed
            if last:
                break
        return changed

    def _missing(self) -> tuple[list[tuple[str, str]], bool]:
        """Remove what no entry names; return what is missing, and whether it removed any."""
        self._gone.clear()
        wanted, held, refused = self.view.exporters(), self.held.digests(), self.held.refused()
        for node in {*held, *refused} - set(wanted):
            self.held.drop(node)
        missing = []
        for node, digest in wanted.items():
            before = refused.get(node)
            tried = before.tries if before is not None and before.digest == digest else 0
            looked = self._looked.get(node)
            due = tried < MAX_TRIES or looked is None or self.seconds() - looked >= SELDOM
            if held.get(node) != digest and due:
                self._looked[node] = self.seconds()
                missing.append((node, digest))
        if not held and self.view.current_until() is not None:
            self.held.note_unread(missing, "not read from the bus yet")
        return missing, not held.keys() <= wanted.keys()

    def _hold(self, waiting: list[NodeExports], fetched: Iterable[_Fetched], *, last: bool) -> bool:
        """Store fetched exports, several nodes in a transaction; return whether any was stored.

        The rest stays in `waiting` for the next call.
        """
        held = False
        for exports in fetched:
            try:
                waiting.append(exports.unpacked())
            except InvalidInputError as error:
                self._refuse(exports.node, str(exports.summary.digest), error)
            size = sum(each.size for each in waiting)
            if len(waiting) >= self.together or size > MAX_WAITING:
                held = self._write(waiting) or held
        return (last and self._write(waiting)) or held

    def _write(self, waiting: list[NodeExports]) -> bool:
        waiting[:] = [pending for pending in waiting if pending.node not in self._gone]
        if not waiting:
            return False
        left = self.held.hold_all(waiting)
        for exports in left:
            self._refuse(exports.node, exports.digest, InvalidInputError(NO_ROOM))
        for node in {pending.node for pending in waiting} - {item.node for item in left}:
            self._logged_reasons.pop(node, None)
        progressed = len(left) < len(waiting)
        waiting.clear()
        return progressed

    def _refuse(self, node: str, digest: str, error: InvalidInputError | UnavailableError) -> None:
        reason = one_line(str(error))
        tried = isinstance(error, InvalidInputError)
        self.held.refuse(node, digest, reason, tried=tried)
        if self._logged_reasons.get(node) != reason:
            self._logged_reasons[node] = reason
            self.log.warning(
                f"ignoring exports of {node} since its last run: {reason}",
                kind=LineKind.INVENTORY,
            )

    async def _fetch(
        self, kv: KeyValue, node: str, digest: str
    ) -> _Fetched | UnavailableError | None:
        """Return the exports that an entry names, the outage, or `None` if they are rejected."""
        entry = await asyncio.to_thread(self.view.entry, NodeName(node))
        if entry is None or entry.exports.digest != digest:
            return None  # the entry changed: the next round fetches the new exports
        try:
            data = await fetch_chunks(
                kv,
                exports_of(NodeName(node)),
                digest=digest,
                size=entry.exports.size,
                most=MAX_PACKED_EXPORTS,
            )
        except (InvalidInputError, UnavailableError) as error:
            await asyncio.to_thread(self._refuse, node, digest, error)
            return error if isinstance(error, UnavailableError) else None
        return _Fetched(node=node, summary=entry.exports, data=data)
