"""The end of a run in the dashboard's memory, and the bars of the last day."""

from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_kind import Kind

# Seconds for which ends of runs are kept.
KEPT = 90 * 86400.0
HOUR = 3600.0
HOURS = 24
# What a bar of the strip is made of, from the bottom.
GOOD, CHANGED, BAD = "good", "changed", "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a run.

    Attributes:
        node: The node.
        run: Its id.
        at: The time, seconds since 1970, UTC.
        outcome: The result.
        release: The release.
        reason: The reason, one line, or empty.
        failure_cause: The key of its failure cause, see `NodeRow.failure_cause`, or empty.
    """

    node: str
    run: str
    at: float
    outcome: Kind
    release: str
    reason: str
    failure_cause: str = ""

    @classmethod
    def of(cls, row: NodeRow) -> "RunResult | None":
        """Return the end of a node's last run, or `None`."""
        if row.finished_at is None or not row.run:
            return None
        return cls(
            node=row.node,
            run=row.run,
            at=row.finished_at,
            outcome=row.outcome,
            release=row.release,
            reason=row.reason,
            failure_cause=row.failure_cause,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The runs of an hour.

    Attributes:
        begin: Seconds since 1970, UTC.
        good: How many changed nothing.
        changed: How many changed something.
        bad: How many ended badly.
    """

    begin: float
    good: int
    changed: int
    bad: int

    @property
    def total(self) -> int:
        """Return the number of runs."""
        return self.good + self.changed + self.bad


def strip(counts: Mapping[tuple[int, Kind], int], *, now: float) -> tuple[Bar, ...]:
    """Return a bar for each of the last `HOURS` hours, the oldest first.

    Args:
        counts: Runs by the number of their hour since 1970, and by result.
        now: Seconds since 1970, UTC.
    """
    last = int(now // HOUR)
    bars = []
    for hour in range(last - HOURS + 1, last + 1):
        said = {GOOD: 0, CHANGED: 0, BAD: 0}
        for kind in Kind:
            part = BAD if kind.bad else CHANGED if kind in (Kind.CHANGED, Kind.CORRECTED) else GOOD
            said[part] += counts.get((hour, kind), 0)
        bars.append(Bar(begin=hour * HOUR, **said))
    return tuple(bars)
