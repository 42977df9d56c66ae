"""Reports of nodes about rollouts: which rollout holds a node, and how its run in it ended.

A node is held by `CALLER/rollout/ID`, and publishes the end of each step that a rollout requested
under the same name.

These are claims of nodes and not of a journal. They do not cover groups, nodes that the rollout has
not reached, or the reason of its end; a compromised node can report a rollout that never existed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from localpuppet.base.formats.names import RolloutId
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.node_row import HoldView, run_id_of
from localpuppet.fleet.triggers.outcome import DROPPED, MOST, TriggerOutcome
from localpuppet.node.runs.hold import rollout_of
from localpuppet.node.runs.run import Outcome
from localpuppet.web.dashboard.run_results import KEPT

# Seconds by which a rollout's id may be of later.
AHEAD = 86400.0
OTHER = "other"
_WORDS = frozenset((*Outcome, DROPPED, "ended"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRolloutReport:
    """The report of a node about a rollout.

    Attributes:
        rollout: Its id.
        caller: The caller id of the operator.
        outcome: The result of the node's newest run in it, `OTHER` if unknown; empty without a run.
        run: The id of that run, or empty.
        until: The end of the rollout's hold on the node, seconds since 1970, or `None`.
    """

    rollout: RolloutId
    caller: str
    outcome: str = ""
    run: str = ""
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRollout:
    """A rollout as nodes report it.

    Attributes:
        rollout: Its id.
        caller: The caller id of the operator; if nodes disagree, the one that most name, or the
            first named.
        ends: Counts of nodes by last outcome; key empty for nodes without one.
        held: The number of nodes that it holds.
        first: The time of the first report, seconds since 1970.
        last: The time of the last new report.
    """

    rollout: RolloutId
    caller: str
    ends: Mapping[str, int]
    held: int
    first: float
    last: float

    @property
    def nodes(self) -> int:
        """Return the number of nodes that report it."""
        return sum(self.ends.values())


def rollout_reports_of(
    status: Mapping[str, Json], holds: tuple[HoldView, ...], *, now: float
) -> tuple[NodeRolloutReport, ...]:
    """Return the reports of a node about rollouts, each rollout once.

    Args:
        status: The result of `inventory.presence.believe`.
        holds: The holds in the node's row.
        now: Seconds since 1970, UTC.
    """
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
