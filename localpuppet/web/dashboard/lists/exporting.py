"""Exports a list as a file: CSV, JSON, or one name a line.

No cell can be read as a formula by a spreadsheet.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Generic, TypeVar

from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.web.dashboard.failures import FailureGroup
from localpuppet.web.dashboard.lists.differing import ChangeRow
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


def _field(column: str, row: object) -> Json:
    value = getattr(row, column)
    if column in _TIMES:
        return shown(value)
    if isinstance(value, str):
        return str(value)
    return [*map(str, value)] if isinstance(value, tuple | list) else value


@dataclass(frozen=True, slots=True)
class TableForm(Generic[Row]):
    """The form of a list as a file.

    Attributes:
        name: The name of the list.
        columns: The columns. A cell has the field of that name.
        names: Returns the names of the nodes or rollouts in rows.
        cells: What the cells of other columns contain.
    """

    name: str
    columns: tuple[str, ...]
    names: Callable[[Sequence[Row]], Iterable[str]]
    cells: Mapping[str, Callable[[Row], Json]] = field(default_factory=dict)

    def __call__(self, rows: Sequence[Row]) -> Table:
        """Return rows as a table."""
        cells = {name: self.cells.get(name, partial(_field, name)) for name in self.columns}
        return Table(
            name=self.name,
            columns=self.columns,
            records=[{name: cell(row) for name, cell in cells.items()} for row in rows],
            names=[*self.names(rows)],
        )


def _of_record(column: str, row: NodeAuditRecord) -> Json:
    return _field(column, row.record)


def _nodes_of(rows: Iterable[FailureGroup | ReleaseRow]) -> Sequence[str]:
    return sorted({name for row in rows for name in row.nodes})


def _node_of(rows: Iterable[RunResult | NodeAuditRecord | NodeDrift]) -> Sequence[str]:
    return sorted({row.node for row in rows})


nodes_table: TableForm[NodeRow] = TableForm("nodes", NODES, lambda rows: (row.node for row in rows))
failures_table: TableForm[FailureGroup] = TableForm(
    "failures",
    FAILURES,
    _nodes_of,
    {
        "count": lambda group: len(group.nodes),
        "outcomes": lambda group: [str(kind) for kind in group.kinds],
    },
)
releases_table: TableForm[ReleaseRow] = TableForm(
    "releases",
    RELEASES,
    _nodes_of,
    {
        "count": lambda row: len(row.nodes),
        "digests": lambda row: [digest for digest, _ in row.digests],
    },
)
changes_table: TableForm[ChangeRow] = TableForm(
    "changes", CHANGES, lambda rows: (row.name for row in rows)
)
rollouts_table: TableForm[RolloutRow] = TableForm(
    "rollouts",
    ROLLOUTS,
    lambda rows: (row.id for row in rows),
    {"counts": lambda row: [f"{state}={count}" for state, count in row.counts]},
)
runs_table: TableForm[RunResult] = TableForm(
    "runs",
    RUNS,
    _node_of,
    {
        "finished_at": lambda run: shown(run.at),
        "resources": lambda run: [
            f"{resource.word} {resource.resource} {resource.place}".rstrip()
            for resource in run.resources
        ],
    },
)
audit_table: TableForm[NodeAuditRecord] = TableForm(
    "audit",
    AUDIT,
    _node_of,
    {name: partial(_of_record, name) for name in AUDIT if name != "node"},
)
drift_table: TableForm[NodeDrift] = TableForm("drift", DRIFT, _node_of)


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
