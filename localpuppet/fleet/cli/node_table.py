"""Nodes as rows of a table, in the words and colours of the dashboard."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from localpuppet.base.formats.text import one_line
from localpuppet.fleet.inventory.node_row import LATE, NOT_TRUSTED, ON_HOLD, UNRESPONSIVE, NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.cli import render, render_run

FAILED = "failed"
# The words that the last line counts, the most urgent first.
COUNTED = (FAILED, UNRESPONSIVE, NOT_TRUSTED, LATE, ON_HOLD)
_HEAD = ("NODE", "STATE", "LAST RUN", "SINCE", "RELEASE", "FIRST ERROR OR REMARK")
_STATES = {
    "applying": "cyan",
    "idle": "green",
    ON_HOLD: "yellow",
    NOT_TRUSTED: "red",
    UNRESPONSIVE: "red",
}
_RESULTS = {
    Kind.CHANGED: "cyan",
    Kind.CORRECTED: "magenta",
    Kind.UNCHANGED: "green",
    Kind.NOOP_CLEAN: "green",
    Kind.NOOP_PENDING: "yellow",
    Kind.CANCELLED: "yellow",
    Kind.UNKNOWN: "yellow",
}


def node_table(rows: Sequence[NodeRow], now: datetime) -> str:
    """Return nodes as a table, with a line of counts below."""
    lines = []
    for row in rows:
        node, state, result, release, remark = cells(row, now)
        lines.append((node, state, result, _since(row, now), release, remark))
    counts = [f"{count} {word}" for word, count in concerns(rows, now).items() if count]
    last = ": ".join(filter(None, [render.counted(len(rows), "node"), ", ".join(counts)]))
    return f"{render.table(_HEAD, lines, spare=('SINCE',))}\n{last}"


def concerns(rows: Sequence[NodeRow], now: datetime) -> dict[str, int]:
    """Return the number of nodes by each word of `COUNTED`; a node may count several times."""
    return {word: sum(has_concern(row, word, now) for row in rows) for word in COUNTED}


def has_concern(row: NodeRow, word: str, now: datetime) -> bool:
    """Return whether a word of `COUNTED` applies to a node."""
    if word == FAILED:
        return row.outcome.bad
    if word == LATE:
        return row.late(now.timestamp())
    return row.state == word or (word == ON_HOLD and bool(row.holds))


def cells(row: NodeRow, now: datetime) -> list[str]:
    """Return the cells of a node: name, state, last result, release, first error or remark."""
    state = click.style(one_line(row.state), fg=_STATES.get(row.state), bold=True)
    if row.late(now.timestamp()):
        state += f" {click.style(LATE, fg='yellow', bold=True)}"
    color = "red" if row.outcome.bad else _RESULTS.get(row.outcome)
    result = "" if row.outcome is Kind.NONE else click.style(row.outcome, fg=color, bold=True)
    return [row.node, state, result, row.release, _remark(row)]


def _remark(row: NodeRow) -> str:
    if row.state == NOT_TRUSTED:
        return row.reason
    if row.outcome.bad and not row.blocked:
        error = ": ".join(filter(None, [row.resource, row.failure]))
        return f"{error} ({row.place})" if row.place else error
    hold = ""
    if row.holds:  # the reason of a rollout's hold names the rollout
        hold = f"{row.holds[0].reason} ({row.holds[0].owner.partition('/rollout/')[0]})"
    rollback = f"rolled back; its input names {row.input_release}" if row.input_release else ""
    return row.blocked or row.cause or hold or rollback


def _since(row: NodeRow, now: datetime) -> str:
    """Return since when a node fails, or how long ago its last run ended."""
    at = row.failing_since or row.finished_at
    if at is None:
        return ""
    ago = render_run.ago(datetime.fromtimestamp(at, UTC).isoformat(), now)
    return f"{ago}, {render.counted(row.failed_runs, 'run')}" if row.failed_runs else ago
