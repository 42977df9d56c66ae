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
from functools import partial
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


NODES = (
    *("node", "state", "outcome", "finished_at", "release", "roles", "reason", "run", "error"),
    *("resource", "place", "failing_since", "failed_runs"),
)
FAILURES = ("error", "resource", "place", "count", "first", "last", "outcomes", "nodes")
RELEASES = (
    *("release", "count", "bad", "wrong_release", "digests", "last", "staged", "tag", "url"),
    "signed",
)
CHANGES = ("of", "name", "change", "how")
ROLLOUTS = (
    *("id", "state", "title", "release", "caller", "started_at", "finished_at", "nodes", "counts"),
    *("reason", "source"),
)
RUNS = (
    *("node", "run", "finished_at", "seconds", "outcome", "release", "cause", "reason"),
    *("resources", "more"),
)
AUDIT = ("at", "node", "caller", "action", "subject", "decision", "reason", "times", "request")
DRIFT = ("node", "resource", "place", "count", "last", "run")
# The columns that are times.
_TIMES = frozenset({"at", "finished_at", "started_at", "failing_since", "first", "last"})


def _table(
    name: str,
    rows: Sequence[Row],
    columns: tuple[str, ...],
    *,
    names: Iterable[str],
    **cells: Callable[[Row], Json],
) -> Table:
    """Return a table.

    Args:
        name: The name of the list.
        rows: The rows.
        columns: The columns. A cell has the field of that name.
        names: The names of the nodes or rollouts.
        cells: What the cells of other columns contain.
    """
    written = [(column, cells.get(column, partial(_field, column))) for column in columns]
    records = [{column: cell(row) for column, cell in written} for row in rows]
    return Table(name=name, columns=columns, records=records, names=[*names])


def _field(column: str, row: object) -> Json:
    value = getattr(row, column)
    if column in _TIMES:
        return shown(value)
    if isinstance(value, str):
        return str(value)
    return [*map(str, value)] if isinstance(value, tuple | list) else value


def nodes_table(rows: Sequence[NodeRow]) -> Table:
    """Return nodes as a table."""
    return _table("nodes", rows, NODES, names=(row.node for row in rows))


def failures_table(failures: Sequence[FailureGroup]) -> Table:
    """Return failures as a table; the names are those of all their nodes, sorted."""
    return _table(
        "failures",
        failures,
        FAILURES,
        names=_nodes_of(failures),
        count=lambda group: len(group.nodes),
        outcomes=lambda group: [str(kind) for kind in group.kinds],
    )


def releases_table(releases: Sequence[ReleaseRow]) -> Table:
    """Return releases as a table; the names are those of all their nodes, sorted."""
    return _table(
        "releases",
        releases,
        RELEASES,
        names=_nodes_of(releases),
        count=lambda row: len(row.nodes),
        digests=lambda row: [digest for digest, _ in row.digests],
    )


def _nodes_of(rows: Iterable[FailureGroup | ReleaseRow]) -> Sequence[str]:
    return sorted({name for row in rows for name in row.nodes})


def changes_table(changes: Sequence[ChangeRow]) -> Table:
    """Return the differences between two releases as a table."""
    return _table("changes", changes, CHANGES, names=(change.name for change in changes))


def rollouts_table(rollouts: Sequence[RolloutRow]) -> Table:
    """Return rollouts as a table; the names are their ids."""
    return _table(
        "rollouts",
        rollouts,
        ROLLOUTS,
        names=(rollout.id for rollout in rollouts),
        counts=lambda row: [f"{state}={count}" for state, count in row.counts],
    )


def runs_table(runs: Sequence[RunResult]) -> Table:
    """Return runs as a table; the names are those of their nodes, sorted."""
    return _table(
        "runs",
        runs,
        RUNS,
        names=sorted({run.node for run in runs}),
        finished_at=lambda run: shown(run.at),
        resources=lambda run: [
            f"{resource.word} {resource.resource} {resource.place}".rstrip()
            for resource in run.resources
        ],
    )


def audit_table(records: Sequence[NodeAuditRecord]) -> Table:
    """Return audit records as a table; the names are those of their nodes, sorted."""
    return Table(
        name="audit",
        columns=AUDIT,
        records=[
            {**to_record(record.record), "at": shown(record.record.at), "node": record.node}
            for record in records
        ],
        names=sorted({record.node for record in records}),
    )


def drift_table(rows: Sequence[NodeDrift]) -> Table:
    """Return the resources that runs corrected as a table; the names are those of the nodes."""
    return _table("drift", rows, DRIFT, names=sorted({row.node for row in rows}))


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
    document = {"schema": 1, "last_updated": shown(last_updated), table.name: table.records}
    return json.dumps(document, indent=1)


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
    visible = (
        character
        for character in part
        if character in _FORMULA or (character.isprintable() and character not in ' "')
    )
    return f"'{part}" if next(visible, "") in _FORMULA else part
