"""The current state of the fleet, shared by all readers of the dashboard: one row a node.

- A node whose entry left the bus is unresponsive; it keeps the result of its last run.
- If the bus is unreachable, rows stay and the dashboard shows since when.
- Signatures are verified in limited batches, so that other tasks continue; for each node only the
  newest entry waits.
- If the limit of nodes is reached, trusted nodes replace untrusted ones.
- Changes stay in `news` until they are written. Runs are not among them: the memory has them from
  the history that nodes publish.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from types import MappingProxyType

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus import key_value
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyRemoval, KeyValueEntry
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.fleet.inventory.node_row import NOT_TRUSTED, UNRESPONSIVE, NodeRow
from localpuppet.web.dashboard.lists.node_standings import NodeStandings
from localpuppet.web.dashboard.remote_rollouts import NodeRolloutReport, rollout_reports_of
from localpuppet.web.dashboard.run_results import KEPT

Believe = Callable[[str, bytes], Mapping[str, Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """Limits of a fleet: a client with write access to presence must not fill the memory.

    Attributes:
        nodes: Maximum number of nodes.
        together: Entries that are verified in one go, some 200 microseconds each.
        pause: Seconds between two of these, for requests: their threads wait for the event loop.
        changes: Changes whose nodes are known; a reader further behind loads everything.
    """

    nodes: int = 20_000
    together: int = 20
    pause: float = 0.002
    changes: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUpdate:
    """Changes to write to the memory.

    Attributes:
        rows: Changed nodes.
        gone: Nodes that were forgotten.
        last_updated: When the bus last answered.
        reports: Changed reports of nodes about rollouts.
    """

    rows: tuple[NodeRow, ...]
    gone: tuple[str, ...]
    last_updated: float | None
    reports: Mapping[str, tuple[NodeRolloutReport, ...]]


class ChangeLog:
    """Counts the changes of a fleet, and remembers which nodes the last ones were of.

    Args:
        remembered: How many changes are remembered.
    """

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
    """The rows; a `PresenceBoard`.

    Args:
        rows: The rows from the memory.
        last_updated: When the bus last answered, from the memory.
        believe: Verifies and returns a signed presence entry.
        now: Seconds since 1970, UTC.
        holding: Reports of nodes about rollouts that hold them, from the memory.
        limits: The limits.

    Attributes:
        standing: The same nodes, indexed for lists.
        changes: The changes of rows, and of the state of the bus.
        verified: Set as soon as the entries of a first listing are verified.
        missing_days: Of how many of the last days the history is not complete yet; `None` if the
            bus denies reading it.
    """

    def __init__(
        self,
        rows: Iterable[NodeRow],
        *,
        last_updated: float | None,
        believe: Believe,
        now: Callable[[], float],
        holding: Mapping[str, tuple[NodeRolloutReport, ...]] = MappingProxyType({}),
        limits: FleetLimits = FleetLimits(),
    ) -> None:
        self._limits = limits
        self.standing = NodeStandings(rows)
        self._rows = self.standing.rows
        self._believe = believe
        self._now = now
        self._revisions: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._gone: set[str] = set()
        self._left: set[str] = set()
        self._forgotten: AbstractSet[str] = frozenset()
        self._rollouts = dict(holding)
        self._changed_reports: set[str] = set()
        self.changes = ChangeLog(limits.changes)
        self._waiting: dict[str, KeyValueEntry] = {}
        self._behind = asyncio.Event()
        self._is_listed = False
        self.verified = asyncio.Event()
        self.last_updated = last_updated
        self.away = "not connected yet"
        self.is_full = False
        self.missing_days: int | None = 0

    @property
    def rows(self) -> Collection[NodeRow]:
        """Return all nodes, in no order."""
        return self._rows.values()

    def row(self, name: str) -> NodeRow | None:
        """Return a node; `None` if it is unknown."""
        return self._rows.get(name)

    def take(self, change: Change) -> None:
        """Apply a change."""
        self.answered()
        if isinstance(change, KeyListing):
            # It may be another store.
            self._revisions.clear()
            self._waiting.clear()
            self._is_listed = True
        for entry in key_value.entries(change):
            name = entry.key.removeprefix(PRESENCE)
            if name in self._waiting or len(self._waiting) < self._limits.nodes:
                self._waiting[name] = entry
        if isinstance(change, KeyListing):
            there = {entry.key.removeprefix(PRESENCE) for entry in change.entries}
            for name in self._rows.keys() - there:
                self._mark_unresponsive(name)
        elif isinstance(change, KeyRemoval):
            self._mark_unresponsive(change.key.removeprefix(PRESENCE))
        if not self._behind.is_set():
            self._catch_up()

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        """Mark nodes as gone that a listing lacks, unless they were written after it."""
        self.answered()
        for name in (self._rows.keys() | self._waiting.keys()) - names:
            waiting = self._waiting.get(name)
            newest = waiting.revision if waiting else self._revisions.get(name, 0)
            if newest <= revision:
                self._mark_unresponsive(name)

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
            if self._is_listed:
                self.verified.set()

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
        """Apply runs of a node, which published them; presence knows better while there is any.

        Args:
            name: The node.
            runs: Some of its runs.
        """
        row = self._rows.get(name, NodeRow(node=name))
        is_known = name in self._rows or (
            name not in self._forgotten and len(self._rows) < self._limits.nodes
        )
        if is_known and row.state == UNRESPONSIVE:
            self._put(row.with_history(run.end for run in runs))

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
        """Apply the inventory.

        Args:
            roles: The roles of nodes with new entries.
            all_: All nodes of the inventory.
            forgotten: Nodes with a tombstone and without a later entry. An unresponsive node is
                forgotten if it is one of these, left the inventory, or sent nothing for `KEPT`
                seconds.
        """
        for name, node_roles in roles.items():
            if name in self._rows or len(self._rows) < self._limits.nodes:
                row = self._rows.get(name, NodeRow(node=name))
                self._put(replace(row, roles=node_roles, in_inventory=True))
        oldest = self._now() - KEPT
        absent = [row for name, row in self._rows.items() if name not in all_]
        self._forgotten = frozenset(forgotten)
        self._left = {row.node for row in absent if row.in_inventory or row.node in forgotten}
        for row in absent:
            seen = max(row.received_at or 0.0, row.finished_at or 0.0)
            is_old = row.node in self._left or seen < oldest
            if row.state == UNRESPONSIVE and is_old:
                self._forget(row.node)
            elif row.roles:
                self._put(replace(row, roles=()))

    def news(self) -> FleetUpdate:
        """Return the changes since `written`."""
        return FleetUpdate(
            rows=tuple(self._rows[name] for name in self._dirty),
            gone=tuple(self._gone),
            last_updated=self.last_updated,
            reports={name: self._rollouts.get(name, ()) for name in self._changed_reports},
        )

    def written(self, news: FleetUpdate) -> None:
        """Note that changes were written."""
        self._dirty -= {row.node for row in news.rows if self._rows.get(row.node) == row}
        self._gone -= set(news.gone)
        known = self._rollouts
        self._changed_reports -= {
            name for name in news.reports if known.get(name, ()) == news.reports[name]
        }
        if news.reports:
            self.stir()  # the list of rollouts is made of what is written

    def _take_entry(self, name: str, token: bytes, revision: int) -> None:
        if revision <= self._revisions.get(name, 0) or not _is_name(name):
            return
        before = self._rows.get(name)
        status = self._believe(name, token)
        row = NodeRow.of_presence(name, status, now=self._now())
        if before is None and not self._has_room(row):
            return
        self._revisions[name] = revision
        self._put(row if before is None else row.beside(before))
        self._note_rollouts(name, rollout_reports_of(status, row.holds, now=self._now()))

    def _note_rollouts(self, name: str, reports: tuple[NodeRolloutReport, ...]) -> None:
        if self._rollouts.get(name, ()) != reports:
            self._rollouts[name] = reports
            self._changed_reports.add(name)

    def _has_room(self, row: NodeRow) -> bool:
        """Return whether a new node fits; forget an untrusted node for a trusted one."""
        if len(self._rows) < self._limits.nodes:
            return True
        if row.state == NOT_TRUSTED:
            return False
        strangers = (
            name
            for name, other in self._rows.items()
            if other.state == NOT_TRUSTED and not other.in_inventory
        )
        stranger = next(strangers, None)
        if stranger is None:
            return False
        self._revisions.pop(stranger, None)
        self._forget(stranger)
        return True

    def _mark_unresponsive(self, name: str) -> None:
        self._revisions.pop(name, None)
        self._waiting.pop(name, None)
        row = self._rows.get(name)
        if row is None or row.state == UNRESPONSIVE:
            return
        if name in self._left or (row.state == NOT_TRUSTED and not row.in_inventory):
            self._forget(name)  # it left the inventory, or its entry was never verified
        else:
            self._put(replace(row, state=UNRESPONSIVE, cause=""))

    def _forget(self, name: str) -> None:
        self.standing.forget(name)
        self._dirty.discard(name)
        if self._rollouts.pop(name, ()):
            self._changed_reports.add(name)  # those rollouts no longer hold it
        else:
            self._changed_reports.discard(name)
        self._gone.add(name)
        self.changes.add(name)

    def _put(self, row: NodeRow) -> None:
        self._gone.discard(row.node)
        if self.standing.put(row):
            self._dirty.add(row.node)
            self.changes.add(row.node)


def _is_name(name: str) -> bool:
    try:
        NodeName.parse(name)
    except InvalidInputError:
        return False
    return True
