"""What the dashboard hears of the fleet: it is verified, and waits to be written to the memory.

- A node whose entry left the bus is unresponsive; it keeps the result of its last run.
- If the bus is unreachable, rows stay and the dashboard shows since when.
- Signatures are verified in limited batches, so that other tasks continue; for each node only the
  newest entry waits.
- If the limit of nodes is reached, trusted nodes replace untrusted ones.
- The process keeps no row: it keeps what waits, and the revision and time of each node's last
  entry. A change is announced once the memory has it, so that lists show it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.bus import key_value
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyRemoval, KeyValueEntry
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.history.history_records import RunSummary
from localpuppet.fleet.inventory.presence import NOT_TRUSTED, UNRESPONSIVE, NodeRow
from localpuppet.fleet.inventory.run_end import RunEnd
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.nodes import NodeTable, of_name
from localpuppet.web.dashboard.reported_rollouts import NodeRolloutReport, rollout_reports_of
from localpuppet.web.dashboard.run_table import KEPT

Believe = Callable[[str, bytes], Mapping[str, Json]]
# Changes that wait to be written, by kind and node: a later one of a kind replaces an earlier one.
Waiting = dict[tuple[str, str], Callable[[NodeTable], None]]


class FleetLimits(Value):
    """Limits of a fleet: a client with write access to presence must not fill the memory."""

    nodes: int = 20_000
    together: int = 20  # entries that are verified in one go, some 200 microseconds each
    # Seconds between two of these, for requests: their threads wait for the event loop.
    pause: float = 0.002
    changes: int = 1000


class ChangeLog:
    """Counts the changes of a fleet, and remembers which nodes the last ones were of."""

    def __init__(self, remembered: int) -> None:
        self._log: deque[tuple[int, str]] = deque(maxlen=remembered)
        self._woken = asyncio.Event()
        self.revision = 0

    def add(self, name: str) -> None:
        """Add a change of a node; of something else for an empty name."""
        self.revision += 1
        self._log.append((self.revision, name))
        self._woken.set()
        self._woken = asyncio.Event()

    async def changed(self, after: int) -> None:
        """Wait for a revision after `after`."""
        while self.revision <= after:
            await self._woken.wait()

    def since(self, revision: int) -> set[str] | None:
        """Return the nodes that changed after a revision; `None` if any node may have changed."""
        if revision >= self.revision:
            return set()
        if not self._log or self._log[0][0] > revision + 1:
            return None
        newest_first = takewhile(lambda change: change[0] > revision, reversed(self._log))
        names = {name for _, name in newest_first}
        return None if "" in names else names


class Fleet:
    """The fleet; a `PresenceBoard`.

    `believe` verifies and returns a presence entry; `certificate_end`, the end of its certificate.

    Attributes:
        news: Set while changes wait to be written.
        unsaved: Why changes wait that could not be written; empty if they could.
        verified: Set as soon as the entries of a first listing are verified and written.
        missing_days: Of how many of the last days the history is not complete yet; `None` if the
            bus denies reading it.
        failing: What fails besides nodes: kind → name → reason, see `note_failing`.
    """

    def __init__(
        self,
        memory: DashboardStore,
        *,
        believe: Believe,
        now: Callable[[], float],
        certificate_end: Callable[[bytes], float | None] = lambda _: None,
        limits: FleetLimits = FleetLimits(),
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._believe = believe
        self._certificate_end = certificate_end
        self.certificate_ends: dict[str, float | None] = {}
        self._now = now
        self._seen: dict[str, tuple[int, float]] = {}  # the revision and time of the last entries
        self._left: AbstractSet[str] = frozenset()
        self._forgotten: AbstractSet[str] = frozenset()
        self._rollouts = dict(memory.holding())
        self._changes: Waiting = {}
        self.news = asyncio.Event()
        self.changes = ChangeLog(limits.changes)
        self._waiting: dict[str, KeyValueEntry] = {}
        self._behind = asyncio.Event()
        self._is_listed = False
        self.verified = asyncio.Event()
        self.last_updated = memory.last_updated()
        self.away = "not connected yet"
        self.unsaved = ""
        self.is_full = False
        self.missing_days: int | None = 0
        self.has_no_bus = False
        self.failing: dict[str, Mapping[str, str]] = {}

    def take(self, change: Change) -> None:
        self.answered()
        if isinstance(change, KeyListing):
            # It may be another store.
            seen, self._seen = self._seen, {}
            self._waiting.clear()
            self._is_listed = True
            there = {entry.key.removeprefix(PRESENCE) for entry in change.entries}
            self._later("lose", partial(self._lose, but=there, seen=seen))
        elif isinstance(change, KeyRemoval):
            name = change.key.removeprefix(PRESENCE)
            self._waiting.pop(name, None)
            seen = {name: self._seen.pop(name)} if name in self._seen else {}
            self._later("leave", partial(self._mark_unresponsive, name, seen), name)
        for entry in key_value.entries(change):
            name = entry.key.removeprefix(PRESENCE)
            if name in self._waiting or len(self._waiting) < self._limits.nodes:
                self._waiting[name] = entry
        if not self._behind.is_set():
            self._catch_up()

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        """Mark nodes as gone that a listing lacks, unless they were written after it."""
        self.answered()
        for name in [*self._waiting.keys() - names]:
            if self._waiting[name].revision <= revision:
                del self._waiting[name]
        newer = {name for name, (known, _) in self._seen.items() if known > revision}
        there = names | newer | self._waiting.keys()
        self._later("lose", partial(self._lose, but=there, seen=dict(self._seen)))

    async def keep_up(self) -> None:
        """Verify waiting entries for ever, with pauses for other tasks and threads."""
        while True:
            await self._behind.wait()
            self._catch_up()
            await asyncio.sleep(self._limits.pause)

    def _catch_up(self) -> None:
        for name in list(islice(self._waiting, self._limits.together)):
            entry = self._waiting.pop(name)
            self._take_entry(name, entry.value, entry.revision)
        if self._waiting:
            self._behind.set()
        else:
            self._behind.clear()

    def answered(self) -> None:
        """Note that the bus answered."""
        self.last_updated = self._now()
        self.is_full = False
        if self.away:
            self.away = ""
            self.changes.add("")

    def lost(self, reason: str) -> None:
        """Note that the bus is unreachable."""
        self.is_full = False
        if self.away != reason:
            self.away = reason
            self.changes.add("")

    def full(self, reason: str) -> None:
        """See `PresenceBoard`: rows stay as they were, as if the bus was unreachable."""
        self.lost(reason)
        self.is_full = True

    def miss_history(self, days: int | None) -> None:
        """Note of how many days the history is not complete yet; see `missing_days`."""
        if self.missing_days != days:
            self.missing_days = days
            self.changes.add("")

    def ran(self, name: str, runs: Sequence[RunSummary]) -> None:
        """Apply runs of a node, which published them; presence knows better while there is any."""
        self._later("ran", partial(self._note_runs, name, [run.end for run in runs]), name)

    def stir(self) -> None:
        """Note a change of something besides the nodes, so that readers load again."""
        self.changes.add("")

    def listed(
        self,
        roles: Mapping[str, tuple[str, ...]],
        *,
        all_: Collection[str],
        forgotten: Collection[str] = (),
    ) -> None:
        """Apply the inventory: all its nodes, and the roles of those with new entries.

        Forgotten nodes have a tombstone and no later entry. An unresponsive node is forgotten if it
        is one of these, left the inventory, or sent nothing for `KEPT` seconds.
        """
        for name, node_roles in roles.items():
            self._later("roles", partial(self._list, name, node_roles), name)
        self._forgotten = frozenset(forgotten)
        self._later("absent", partial(self._leave_out, frozenset(all_), self._forgotten))

    def waiting(self) -> Waiting:
        """Return the changes that wait to be written, for `write`."""
        self.news.clear()
        waiting, self._changes = self._changes, {}
        return waiting

    def write(self, waiting: Waiting) -> NodeTable:
        """Write changes, in a thread: it waits for the disk. If it fails, see `put_back`."""
        with self._memory.changing(last_updated=self.last_updated) as table:
            for change in waiting.values():
                change(table)
        return table

    def put_back(self, waiting: Waiting, reason: str) -> None:
        """Keep changes that could not be written; later ones replace them."""
        self._changes = waiting | self._changes
        self._note_unsaved(reason)

    def _note_unsaved(self, reason: str) -> None:
        if self.unsaved != reason:
            self.unsaved = reason
            self.stir()

    def note_failing(self, kind: str, reasons: Mapping[str, str]) -> None:
        """Show which channels of notifications, or which hooks, fail; `reasons` are by name."""
        if self.failing.get(kind, {}) != reasons:
            self.failing[kind] = reasons
            self.stir()

    def announce(self, written: NodeTable) -> None:
        """Tell readers what was written."""
        self._note_unsaved("")
        for name in written.gone:
            self._seen.pop(name, None)
            self._rollouts.pop(name, None)
            self.certificate_ends.pop(name, None)
        for name in written.changed:
            self.changes.add(name)
        if written.reported:
            self.stir()  # the list of rollouts is made of what is written
        if self._is_listed and not self._waiting and not self._changes:
            self.verified.set()

    def _later(self, kind: str, change: Callable[[NodeTable], None], name: str = "") -> None:
        self._changes.pop((kind, name), None)  # the new one comes after all others
        self._changes[kind, name] = change
        self.news.set()

    def _take_entry(self, name: str, token: bytes, revision: int) -> None:
        if revision <= self._seen.get(name, (0, 0.0))[0] or not _is_name(name):
            return
        status = self._believe(name, token)
        now = self._now()
        row = NodeRow.of_presence(name, status, now=now)
        self._seen[name] = revision, now
        if row.state != NOT_TRUSTED:
            self.certificate_ends[name] = self._certificate_end(token)
        reports = rollout_reports_of(status, row.holds, now=now)
        changed = self._rollouts.get(name, ()) != reports
        self._rollouts[name] = reports
        self._later("put", partial(self._put, row, reports if changed else None), name)

    def _put(
        self, row: NodeRow, reports: tuple[NodeRolloutReport, ...] | None, table: NodeTable
    ) -> None:
        before = of_name(table.connection, row.node)
        if before is None and not self._has_room(row, table):
            table.gone.add(row.node)
            return
        table.put(row if before is None else row.beside(before), before)
        if reports is not None:
            table.report(row.node, reports)

    def _has_room(self, row: NodeRow, table: NodeTable) -> bool:
        """Return whether a new node fits; forget an untrusted node for a trusted one."""
        if table.count < self._limits.nodes:
            return True
        if row.state == NOT_TRUSTED:
            return False
        strangers = table.names(
            f"state = '{NOT_TRUSTED}' AND NOT row ->> '$.in_inventory' ORDER BY rowid LIMIT 1"
        )
        for stranger in strangers:
            table.forget(stranger)
        return bool(strangers)

    def _lose(
        self, table: NodeTable, *, but: AbstractSet[str], seen: Mapping[str, tuple[int, float]]
    ) -> None:
        for name in table.names(f"state != '{UNRESPONSIVE}'") - but:
            self._mark_unresponsive(name, seen, table)

    def _mark_unresponsive(
        self, name: str, seen: Mapping[str, tuple[int, float]], table: NodeTable
    ) -> None:
        row = of_name(table.connection, name)
        if row is None or row.state == UNRESPONSIVE:
            return
        if name in self._left or (row.state == NOT_TRUSTED and not row.in_inventory):
            table.forget(name)  # it left the inventory, or its entry was never verified
        else:
            _, at = seen.get(name, (0, row.received_at))
            table.put(replace(row, state=UNRESPONSIVE, cause="", received_at=at), row)

    def _note_runs(self, name: str, ends: Sequence[RunEnd], table: NodeTable) -> None:
        before = of_name(table.connection, name)
        row = before or NodeRow(node=name)
        is_known = before is not None or (
            name not in self._forgotten and table.count < self._limits.nodes
        )
        if is_known and row.state == UNRESPONSIVE:
            table.put(row.with_history(ends), before)

    def _list(self, name: str, roles: tuple[str, ...], table: NodeTable) -> None:
        before = of_name(table.connection, name)
        if before is not None or table.count < self._limits.nodes:
            row = before or NodeRow(node=name)
            table.put(replace(row, roles=roles, in_inventory=True), before)

    def _leave_out(
        self, all_: AbstractSet[str], forgotten: AbstractSet[str], table: NodeTable
    ) -> None:
        oldest = self._now() - KEPT
        absent = [of_name(table.connection, name) for name in table.names() - all_]
        rows = [row for row in absent if row is not None]
        self._left = {row.node for row in rows if row.in_inventory or row.node in forgotten}
        for row in rows:
            seen = max(row.received_at or 0.0, row.finished_at or 0.0)
            is_old = row.node in self._left or seen < oldest
            if row.state == UNRESPONSIVE and is_old:
                table.forget(row.node)
            elif row.roles:
                table.put(replace(row, roles=()), row)


def _is_name(name: str) -> bool:
    try:
        NodeName.parse(name)
    except InvalidInputError:
        return False
    return True
