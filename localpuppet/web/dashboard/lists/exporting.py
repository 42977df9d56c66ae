"""Exports a list as a file: CSV, JSON, or one name a line.

No cell can be read as a formula by a spreadsheet.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.records import to_record
from localpuppet.web.dashboard.lists.differing import ChangeRow
from localpuppet.web.dashboard.lists.failures import FailureGroup
from localpuppet.web.dashboard.lists.releases import ReleaseRow
from localpuppet.web.dashboard.lists.rollouts import RolloutRow
from localpuppet.web.dashboard.run_results import RunResult
from localpuppet.web.dashboard.tables.audit_table import NodeAuditRecord
from localpuppet.web.dashboard.tables.run_queries import NodeDrift

# What a spreadsheet takes for a formula: https://owasp.org/www-community/attacks/CSV_Injection.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# After these a spreadsheet that separates cells by semicolons or tabs begins another cell or row.
_PARTS = re.compile(r"(?<=[;\t\r\n])")
_HARMLESS = re.compile(r"\w[^;\t\r\n]*|")  # most cells: this is faster than a look at each part
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A list.

    Attributes:
        name: The name of the list.
        columns: The names of the columns.
        records: Rows by column name; `None` is an empty cell, an array one with spaces.
        names: The names of the nodes or rollouts.
    """

    name: str
    columns: tuple[str, ...]
    records: Sequence[Mapping[str, Json]]
    names: Sequence[str]


def _table(
    name: str,
    rows: Sequence[Row],
    cells: Mapping[str, Callable[[Row], Json]],
    *,
    names: Sequence[str],
) -> Table:
    """Return a table; `cells` has the columns, each with what its cell of a row contains."""
    records = [{column: cell(row) for column, cell in cells.items()} for row in rows]
    return Table(name=name, columns=tuple(cells), records=records, names=names)


def nodes_table(rows: Sequence[NodeRow]) -> Table:
    """Return nodes as a table."""
    return _table(
        "nodes",
        rows,
        {
            "node": lambda row: row.node,
            "state": lambda row: row.state,
            "outcome": lambda row: str(row.outcome),
            "finished_at": lambda row: shown(row.finished_at),
            "release": lambda row: row.release,
            "roles": lambda row: [*row.roles],
            "reason": lambda row: row.reason,
            "run": lambda row: row.run,
            "error": lambda row: row.error,
            "resource": lambda row: row.resource,
            "place": lambda row: row.place,
            "failing_since": lambda row: shown(row.failing_since),
            "failed_runs": lambda row: row.failed_runs,
        },
        names=[row.node for row in rows],
    )


def failures_table(failures: Sequence[FailureGroup]) -> Table:
    """Return failures as a table; the names are those of all their nodes, sorted."""
    return _table(
        "failures",
        failures,
        {
            "error": lambda one: one.error,
            "resource": lambda one: one.resource,
            "place": lambda one: one.place,
            "count": lambda one: len(one.nodes),
            "first": lambda one: shown(one.first),
            "last": lambda one: shown(one.last),
            "outcomes": lambda one: [str(kind) for kind in one.kinds],
            "nodes": lambda one: [*one.nodes],
        },
        names=sorted({name for one in failures for name in one.nodes}),
    )


def releases_table(releases: Sequence[ReleaseRow]) -> Table:
    """Return releases as a table; the names are those of all their nodes, sorted."""
    return _table(
        "releases",
        releases,
        {
            "release": lambda one: one.release,
            "count": lambda one: len(one.nodes),
            "bad": lambda one: one.bad,
            "wrong_release": lambda one: one.wrong_release,
            "digests": lambda one: [digest for digest, _ in one.digests],
            "last": lambda one: shown(one.last),
            "staged": lambda one: one.staged,
            "tag": lambda one: one.tag,
            "url": lambda one: one.url,
            "signed": lambda one: one.signed,
        },
        names=sorted({name for one in releases for name in one.nodes}),
    )


def changes_table(changes: Sequence[ChangeRow]) -> Table:
    """Return the differences between two releases as a table."""
    return _table(
        "changes",
        changes,
        {
            "of": lambda one: one.of,
            "name": lambda one: one.name,
            "change": lambda one: one.change,
            "how": lambda one: one.how,
        },
        names=[one.name for one in changes],
    )


def rollouts_table(rollouts: Sequence[RolloutRow]) -> Table:
    """Return rollouts as a table; the names are their ids."""
    return _table(
        "rollouts",
        rollouts,
        {
            "id": lambda one: one.id,
            "state": lambda one: one.state,
            "title": lambda one: one.title,
            "release": lambda one: one.release,
            "caller": lambda one: one.caller,
            "started_at": lambda one: shown(one.started_at),
            "finished_at": lambda one: shown(one.finished_at),
            "nodes": lambda one: one.nodes,
            "counts": lambda one: [f"{state}={count}" for state, count in one.counts],
            "reason": lambda one: one.reason,
            "source": lambda one: one.source,
        },
        names=[one.id for one in rollouts],
    )


def runs_table(runs: Sequence[RunResult]) -> Table:
    """Return runs as a table; the names are those of their nodes, sorted."""
    return _table(
        "runs",
        runs,
        {
            "node": lambda run: run.node,
            "run": lambda run: run.run,
            "finished_at": lambda run: shown(run.at),
            "seconds": lambda run: run.seconds,
            "outcome": lambda run: str(run.outcome),
            "release": lambda run: run.release,
            "cause": lambda run: run.cause,
            "reason": lambda run: run.reason,
            "resources": lambda run: [
                f"{one.word} {one.resource} {one.place}".rstrip() for one in run.resources
            ],
            "more": lambda run: run.more,
        },
        names=sorted({run.node for run in runs}),
    )


def audit_table(records: Sequence[NodeAuditRecord]) -> Table:
    """Return audit records as a table; the names are those of their nodes, sorted."""
    return Table(
        name="audit",
        columns=(
            *("at", "node", "caller", "action", "subject", "decision", "reason", "times"),
            "request",
        ),
        records=[
            {**to_record(one.record), "at": shown(one.record.at), "node": one.node}
            for one in records
        ],
        names=sorted({one.node for one in records}),
    )


def drift_table(rows: Sequence[NodeDrift]) -> Table:
    """Return the resources that runs corrected as a table; the names are those of the nodes."""
    return _table(
        "drift",
        rows,
        {
            "node": lambda row: row.node,
            "resource": lambda row: row.resource,
            "place": lambda row: row.place,
            "count": lambda row: row.count,
            "last": lambda row: shown(row.last),
            "run": lambda row: row.run,
        },
        names=sorted({row.node for row in rows}),
    )


def as_csv(table: Table) -> str:
    """Return a table as CSV with a head, and without formulas."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.columns)
    for record in table.records:
        writer.writerow([_neutral(_cell(record[column])) for column in table.columns])
    return text.getvalue()


def as_json(table: Table, *, last_updated: float | None) -> str:
    """Return a table as JSON.

    Args:
        table: The table.
        last_updated: When the bus last answered: seconds since 1970; `None` if never.
    """
    told = {"schema": 1, "last_updated": shown(last_updated), table.name: table.records}
    return json.dumps(told, indent=1)


def as_names(names: Iterable[str]) -> str:
    """Return names, one a line."""
    return "".join(f"{name}\n" for name in names)


FORMS: Mapping[str, tuple[str, Callable[[Table, float | None], str]]] = {
    "csv": ("text/csv", lambda table, _: as_csv(table)),
    "json": (
        "application/json",
        lambda table, last_updated: as_json(table, last_updated=last_updated),
    ),
    "txt": ("text/plain", lambda table, _: as_names(table.names)),
}


def shown(seconds: float | None) -> str | None:
    """Return a time in the format of files, or `None`."""
    return None if seconds is None else show_time(datetime.fromtimestamp(seconds, UTC))


def _cell(value: Json) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def _neutral(cell: str) -> str:
    """Return a cell with an apostrophe before each part that could be a formula."""
    return cell if _HARMLESS.fullmatch(cell) else "".join(map(_neutral_part, _PARTS.split(cell)))


def _neutral_part(part: str) -> str:
    """Return a part with an apostrophe if it starts a formula, even after quotes and blanks.

    Blanks are all characters that are not visible: spaces of any width, zero-width ones, controls.
    """
    visible = (one for one in part if one in _FORMULA or (one.isprintable() and one not in ' "'))
    return f"'{part}" if next(visible, "") in _FORMULA else part
