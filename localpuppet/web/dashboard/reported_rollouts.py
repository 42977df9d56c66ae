"""Rollouts on other machines: by their checkpoints on the bus, and by what nodes report.

- An untrusted checkpoint is skipped and hides no other.
- If the bus is unreachable, the last known checkpoints stay.
- The checkpoint of a finished rollout has the result, but not the results of nodes.

A node is held by `CALLER/rollout/ID`, and publishes the end of each step that a rollout requested
under the same name.

These are claims of nodes and not of a journal. They do not cover groups, nodes that the rollout has
not reached, or the reason of its end; a compromised node can report a rollout that never existed.

The last reported rollouts of each node are kept, and of all nodes together: a node that reports
ever new rollouts displaces only its own. Every function takes a connection in a transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import RolloutId
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.bus import key_value
from localpuppet.fleet.bus.store_calls import cancel_all
from localpuppet.fleet.inventory.presence import HoldView, run_id_of
from localpuppet.fleet.triggers.cause import DROPPED, MOST, TriggerOutcome
from localpuppet.node.runs.holds import rollout_of
from localpuppet.node.runs.run import Outcome
from localpuppet.web.dashboard.run_table import KEPT

if TYPE_CHECKING:  # the API starts without them
    from localpuppet.rollout.checkpoints import RolloutCheckpoint, RolloutCheckpoints
    from localpuppet.rollout.rollout_report import RolloutReport

AGAIN = 5.0  # seconds until an unreachable bus is watched again
# Rollouts on other machines that are remembered, and those of them of which it is
# shown how far they are: the newest.
REMOTE_ROLLOUTS_MOST = 500
MOST_SHOWN = 20


class RemoteRollouts:
    """The rollouts of one caller, as the bus has them.

    `again` is the seconds until an unreachable bus is watched again.
    """

    def __init__(
        self, heads: "Callable[[key_value.KeyValue], RolloutCheckpoints]", *, again: float = AGAIN
    ) -> None:
        self._heads = heads
        self._again = again
        self.heads: Mapping[RolloutId, RolloutCheckpoint] = {}  # another one after each change
        self.caller = ""  # known with the first of them

    async def follow(
        self,
        store: Callable[[], Awaitable[key_value.KeyValue]],
        changed: Callable[[], None],
        leave: asyncio.Event,
    ) -> None:
        """Keep the checkpoints up to date until `leave` is set."""
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(store, changed))
            await leave.wait()
            await cancel_all([following])

    async def _follow(
        self, store: Callable[[], Awaitable[key_value.KeyValue]], changed: Callable[[], None]
    ) -> None:
        while True:
            try:
                heads = self._heads(await store())
                async with aclosing(heads.watch()) as changes:
                    async for change in changes:
                        await self._take(heads, change)
                        changed()
            except UnavailableError:
                pass  # an unreachable bus is shown; without the right there are no checkpoints
            await asyncio.sleep(self._again)

    async def _take(self, heads: "RolloutCheckpoints", change: key_value.Change) -> None:
        known = {} if isinstance(change, key_value.KeyListing) else dict(self.heads)
        if isinstance(change, key_value.KeyRemoval):
            known = {
                rollout: known[rollout] for rollout in known if heads.key(rollout) != change.key
            }
        for entry in key_value.entries(change):
            # Large ones take a while to unpack.
            head = await asyncio.to_thread(_believed, heads, entry)
            if head is not None:
                known[head.rollout] = head
        self.caller = heads.owner.caller
        newest = sorted(known, reverse=True)[:REMOTE_ROLLOUTS_MOST]
        shown = [rollout for rollout in newest if not known[rollout].over][:MOST_SHOWN]
        self.heads = {
            rollout: known[rollout] if rollout in shown else replace(known[rollout], events=())
            for rollout in newest
        }


def report_of(head: "RolloutCheckpoint") -> "RolloutReport | None":
    """Return the progress of a rollout on another machine; `None` if its checkpoint lacks it."""
    from localpuppet.rollout.rollout_report import ELSEWHERE, RolloutReport

    if not head.events:
        return None
    return replace(RolloutReport.of(head.events, taken=True), word=ELSEWHERE)


def _believed(
    heads: "RolloutCheckpoints", entry: key_value.KeyValueEntry
) -> "RolloutCheckpoint | None":
    try:
        return heads.believed(entry).head
    except LocalpuppetError:
        return None


# Seconds by which a rollout's id may be of later.
AHEAD = 86400.0
OTHER = "other"
_WORDS = frozenset((*Outcome, DROPPED, "ended"))


class NodeRolloutReport(Value):
    """The report of a node about a rollout.

    `outcome` is that of its newest run in it, `OTHER` if unknown; `until` the end of its hold.
    """

    rollout: RolloutId
    caller: str
    outcome: str = ""
    run: str = ""
    until: float | None = None


class ReportedRollout(Value):
    rollout: RolloutId
    # The caller id of the operator; if nodes disagree, the one that most name, or the first named.
    caller: str
    ends: Mapping[str, int]  # counts of nodes by last outcome; key empty for nodes without one
    held: int
    first: float
    last: float

    @property
    def nodes(self) -> int:
        return sum(self.ends.values())


def rollout_reports_of(
    status: Mapping[str, Json], holds: tuple[HoldView, ...], *, now: float
) -> tuple[NodeRolloutReport, ...]:
    """Return the reports about rollouts in a status that `believe` returned, each rollout once."""
    reports: dict[tuple[str, RolloutId], NodeRolloutReport] = {}
    outcomes = status.get("outcomes")
    for raw in outcomes[-MOST:] if isinstance(outcomes, list) else []:
        end = TriggerOutcome.of_published(raw)
        owner = None if end is None else _owner(end.sender, now)
        if end is not None and owner is not None:
            word = end.outcome if end.outcome in _WORDS else OTHER
            run = run_id_of(end.run)
            reports[owner] = NodeRolloutReport(
                caller=owner[0], rollout=owner[1], outcome=word, run=run
            )
    for hold in holds:
        owner = _owner(hold.owner, now)
        if owner is not None and hold.until is not None:
            before = reports.get(owner, NodeRolloutReport(caller=owner[0], rollout=owner[1]))
            reports[owner] = replace(before, until=hold.until)
    return tuple(reports.values())


def _owner(text: str, now: float) -> tuple[str, RolloutId] | None:
    """Return the caller and the id of a rollout, if its time is plausible."""
    owner = rollout_of(text)
    try:
        at = None if owner is None else owner[1].began().timestamp()
    except ValueError:
        return None
    return owner if at is not None and now - KEPT <= at <= now + AHEAD else None


MOST_OF_ONE = 100
REPORTED_TABLE_MOST = 200_000
# Rollouts that are listed, the newest, and nodes that are named of one.
MOST_LISTED, MOST_NAMED = 2_000, 200
TABLES = """
CREATE TABLE IF NOT EXISTS rollout_reports (
    rollout TEXT NOT NULL, caller TEXT NOT NULL, node TEXT NOT NULL, outcome TEXT NOT NULL,
    run TEXT NOT NULL, until REAL, first REAL NOT NULL, last REAL NOT NULL,
    PRIMARY KEY (rollout, caller, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rollout_reports_of_node ON rollout_reports (node, last);
CREATE INDEX IF NOT EXISTS rollout_reports_last ON rollout_reports (last);
"""


def write(
    connection: Connection, node: str, reports: Iterable[NodeRolloutReport], *, now: float
) -> None:
    """Write the current reports of a node, and end its other rollouts' holds."""
    free = "UPDATE rollout_reports SET until = NULL WHERE node = ? AND until IS NOT NULL"
    connection.execute(free, (node,))
    connection.executemany(
        "INSERT INTO rollout_reports VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7) ON CONFLICT DO UPDATE"
        " SET until = ?6, outcome = iif(?4 = '', outcome, ?4), run = iif(?4 = '', run, ?5),"
        " last = iif(?4 = '' OR (outcome = ?4 AND run = ?5), last, ?7)",
        [
            (report.rollout, report.caller, node, report.outcome, report.run, report.until, now)
            for report in reports
        ],
    )
    connection.execute(
        "DELETE FROM rollout_reports WHERE (rollout, caller, node) IN"
        " (SELECT rollout, caller, node FROM rollout_reports WHERE node = ?"
        " ORDER BY last DESC, rollout DESC LIMIT -1 OFFSET ?)",
        (node, MOST_OF_ONE),
    )


def all_(connection: Connection, *, now: float) -> list[ReportedRollout]:
    """Return the newest reported rollouts, newest first; see `ReportedRollout`."""
    by_rollout: dict[tuple[str, str], ReportedRollout] = {}
    for rollout, caller, outcome, nodes, held, first, last in connection.execute(
        "SELECT rollout, caller, outcome, count(*), count(*) FILTER (WHERE until > ?), min(first),"
        " max(last) FROM rollout_reports GROUP BY rollout, caller, outcome",
        (now,),
    ):
        new = ReportedRollout(
            rollout=RolloutId(rollout),
            caller=caller,
            ends={outcome: nodes},
            held=held,
            first=first,
            last=last,
        )
        known = by_rollout.get((rollout, caller))
        by_rollout[rollout, caller] = new if known is None else _both(known, new)
    likely: dict[str, ReportedRollout] = {}
    for item in sorted(by_rollout.values(), key=lambda reported: (reported.nodes, -reported.first)):
        likely[item.rollout] = item
    return [likely[rollout] for rollout in sorted(likely, reverse=True)[:MOST_LISTED]]


def of_rollout(
    connection: Connection, reported: ReportedRollout
) -> list[tuple[str, NodeRolloutReport]]:
    """Return the reports about a rollout with the nodes' names, at most `MOST_NAMED`.

    Held nodes come first, then the newest reports.
    """
    return [
        (
            node,
            NodeRolloutReport(
                rollout=reported.rollout,
                caller=reported.caller,
                outcome=outcome,
                run=run,
                until=until,
            ),
        )
        for node, outcome, run, until in connection.execute(
            "SELECT node, outcome, run, until FROM rollout_reports WHERE rollout = ? AND caller = ?"
            " ORDER BY until IS NULL, last DESC, node LIMIT ?",
            (reported.rollout, reported.caller, MOST_NAMED),
        )
    ]


def holding(connection: Connection, *, now: float) -> Mapping[str, tuple[NodeRolloutReport, ...]]:
    """Return the reports of nodes about rollouts that hold them, by node."""
    by_node: dict[str, tuple[NodeRolloutReport, ...]] = {}
    for node, rollout, caller, outcome, run, until in connection.execute(
        "SELECT node, rollout, caller, outcome, run, until FROM rollout_reports WHERE until > ?",
        (now,),
    ):
        report = NodeRolloutReport(
            rollout=RolloutId(rollout), caller=caller, outcome=outcome, run=run, until=until
        )
        by_node[node] = (*by_node.get(node, ()), report)
    return by_node


def take_away(connection: Connection, *, oldest: float, most: int = REPORTED_TABLE_MOST) -> None:
    """Delete reports before a time, and those beyond a number, oldest first."""
    connection.execute("DELETE FROM rollout_reports WHERE last < ?", (oldest,))
    connection.execute(
        "DELETE FROM rollout_reports WHERE (rollout, caller, node) IN"
        " (SELECT rollout, caller, node FROM rollout_reports"
        " ORDER BY last DESC, rollout DESC LIMIT -1 OFFSET ?)",
        (most,),
    )


def _both(rollout: ReportedRollout, other: ReportedRollout) -> ReportedRollout:
    return replace(
        rollout,
        ends={**rollout.ends, **other.ends},
        held=rollout.held + other.held,
        first=min(rollout.first, other.first),
        last=max(rollout.last, other.last),
    )
