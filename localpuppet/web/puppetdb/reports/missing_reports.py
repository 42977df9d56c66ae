"""Reports of nodes that sent none although they are overdue, unresponsive or failed.

- PuppetDB keeps the last status of a node that no longer reports, so a dead node looks unchanged.
  Here such a node has one more report, the newest: `failed`, with the reason in its log.
- The report has the time from which it is missing, so its hash is stable. It ends when the node
  runs, and is not stored.
"""

from dataclasses import dataclass

from localpuppet.base.formats.times import show_epoch
from localpuppet.fleet.history.day import DAY
from localpuppet.fleet.inventory.node_row import NOT_TRUSTED, UNRESPONSIVE, NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.run_results import RunResult
from localpuppet.web.dashboard.tables.run_table import MILLI, run_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReport:
    """The newest report of a node in the memory.

    Attributes:
        ended: When its run ended, milliseconds since 1970, UTC.
    """

    ended: int
    failed: bool


def missing_report(row: NodeRow, last: LastReport | None, *, now: float) -> RunResult | None:
    """Return the report that a node should have sent; `None` if its newest one is true.

    Args:
        last: Its newest report; `None` if the memory has none.
        now: Seconds since 1970, UTC.
    """
    missing = _missing(row, last, now=now)
    if missing is None:
        return None
    at, outcome, reason = missing
    if row.last is not None and row.run and at == row.finished_at:
        return RunResult.of_end(row.node, row.last)  # the memory has it in a second
    ended = round(at * MILLI)
    if last is not None:
        ended = max(ended, last.ended + 1)
    day, rest = divmod(ended, round(DAY) * MILLI)
    return RunResult(
        node=row.node,
        run=run_of(day, rest * MILLI << 16),
        at=ended / MILLI,
        outcome=outcome,
        release=row.release,
        reason=reason,
    )


def _missing(
    row: NodeRow, last: LastReport | None, *, now: float
) -> tuple[float, Kind, str] | None:
    """Return from when a report is missing, its result and the reason."""
    seen = row.received_at
    if row.state == NOT_TRUSTED and seen is not None:
        since = seen if last is None else last.ended / MILLI  # each status has another time
        return since, Kind.INTERRUPTED, f"the node's status is not trusted: {row.reason}"
    if row.state == UNRESPONSIVE and seen is not None:
        return (
            seen,
            Kind.INTERRUPTED,
            f"the node is unresponsive: its agent was last online at {show_epoch(seen)}",
        )
    if row.late(now) and row.late_from is not None:
        reason = f"the node is overdue: its last run ended at {show_epoch(row.finished_at or 0.0)}"
        return row.late_from, Kind.INTERRUPTED, reason
    if row.outcome.bad and row.finished_at is not None:
        known = last is not None and (last.failed or last.ended >= row.finished_at * MILLI)
        return None if known else (row.finished_at, row.outcome, row.reason or row.error)
    return None
