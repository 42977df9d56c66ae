"""The lists of the dashboard, as views and as files.

No cell can be read as a formula by a spreadsheet.
"""

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import day_of
from localpuppet.fleet.inventory.presence import NODE_COLUMNS, NodeRow
from localpuppet.web.dashboard import activity, audit_table, nodes, run_queries
from localpuppet.web.dashboard import list_query as forms
from localpuppet.web.dashboard.audit_table import Intent, NodeAuditRecord
from localpuppet.web.dashboard.list_query import Form, ListPage, ListQuery
from localpuppet.web.dashboard.live import SharedAnswers
from localpuppet.web.dashboard.nodes import Names
from localpuppet.web.dashboard.releases import releases
from localpuppet.web.dashboard.rollouts import RolloutRow, rollouts
from localpuppet.web.dashboard.view_context import NotThereError, TemplateRenderer, ViewContext

# What a spreadsheet takes for a formula: https://owasp.org/www-community/attacks/CSV_Injection.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# After these a spreadsheet that separates cells by semicolons or tabs begins another cell or row.
_PARTS = re.compile(r"(?<=[;\t\r\n])")
_HARMLESS = re.compile(r"\w[^;\t\r\n]*|")  # most cells: this is faster than a look at each part


class Table(Value):
    name: str
    columns: tuple[str, ...]
    # Rows by column name; `None` is an empty cell, an array one with spaces.
    records: Sequence[Mapping[str, Json]]
    names: Sequence[str]


FAILURES = ("error", "resource", "place", "count", "first", "last", "outcomes", "nodes")
RELEASES = (
    *("release", "count", "bad", "wrong_release", "digests", "last", "staged", "tag", "url"),
    "signed",
)
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


def _of_record(column: str, row: NodeAuditRecord) -> Json:
    return _field(column, row.record)


@dataclass(frozen=True, slots=True)
class TableForm:
    """The form of a list as a file.

    `names` is the attribute of a row with the name of an item, or with several; `cells` are those
    of columns that no attribute has.
    """

    name: str
    columns: tuple[str, ...]
    names: str = "node"
    cells: Mapping[str, Callable[[Any], Json]] = field(default_factory=dict)

    def __call__(self, rows: Sequence[Any]) -> Table:
        cells = {name: self.cells.get(name, partial(_field, name)) for name in self.columns}
        names = (getattr(row, self.names) for row in rows)
        several = ([one] if isinstance(one, str) else one for one in names)
        return Table(
            name=self.name,
            columns=self.columns,
            records=[{name: cell(row) for name, cell in cells.items()} for row in rows],
            names=[*dict.fromkeys(name for some in several for name in some)],
        )


nodes_table = TableForm("nodes", NODE_COLUMNS)
failures_table = TableForm(
    "failures",
    FAILURES,
    "nodes",
    {
        "count": lambda group: len(group.nodes),
        "outcomes": lambda group: [str(kind) for kind in group.kinds],
    },
)
releases_table = TableForm(
    "releases",
    RELEASES,
    "nodes",
    {
        "count": lambda row: len(row.nodes),
        "digests": lambda row: [digest for digest, _ in row.digests],
    },
)
rollouts_table = TableForm(
    "rollouts",
    ROLLOUTS,
    "id",
    {"counts": lambda row: [f"{state}={count}" for state, count in row.counts]},
)
runs_table = TableForm(
    "runs",
    RUNS,
    cells={
        "resources": lambda run: [
            f"{resource.word} {resource.resource} {resource.place}".rstrip()
            for resource in run.resources
        ]
    },
)
audit_table_of_exporting = TableForm(
    "audit", AUDIT, cells={name: partial(_of_record, name) for name in AUDIT if name != "node"}
)
drift_table = TableForm("drift", DRIFT)


def as_csv(table: Table) -> str:
    """Return a table as CSV with a head, and without formulas."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.columns)
    for record in table.records:
        writer.writerow([_neutral(_cell(record[column])) for column in table.columns])
    return text.getvalue()


def as_json(table: Table, *, last_updated: float | None) -> str:
    """Return a table as JSON, with when the bus last answered."""
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


async def file_of(
    request: Request, make: Callable[[], Table], last_updated: float | None
) -> Response:
    """Return a list as the file that a URL names."""
    path, _, form = request.url.path.partition(".")
    if form not in FORMS:
        raise NotThereError(f"lists are available as {', '.join(FORMS)}")
    media, written = FORMS[form]
    # Ten thousand rows take long to write: others have their turn meanwhile.
    text = await asyncio.to_thread(lambda: written(make(), last_updated))
    name = f"{path.rpartition('/')[2]}.{form}"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=f"{media}; charset=utf-8", headers=headers)


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


def _with_rollout(intent: Intent, known: RolloutRow | None) -> Intent:
    if known is None:
        return intent
    subject = " → ".join(filter(None, (known.release, known.title)))
    if intent.machine is not None:
        return replace(intent, subject=subject)
    return replace(intent, subject=subject, state=known.state, course=known.decisions)


# What a list shows: its rows, and their form as a file.
_List = tuple[Form, Callable[[ListQuery, Names], ListPage[Any]], TableForm]


class NodeLists:
    def __init__(
        self, kept: ViewContext, showing: TemplateRenderer, together: SharedAnswers
    ) -> None:
        self._kept = kept
        self._showing = showing
        self._together = together
        lists: tuple[_List, ...] = (
            (forms.NODES, self._nodes, nodes_table),
            (forms.FAILURES, self._failures, failures_table),
            (forms.RELEASES, self._releases, releases_table),
            (forms.ROLLOUTS, self._rollouts, rollouts_table),
            (forms.RUNS, self._runs, runs_table),
            (forms.AUDIT, self._audit, audit_table_of_exporting),
            (forms.DRIFT, self._drift, drift_table),
        )
        self._lists = {list_[0].path: list_ for list_ in lists}

    async def page(self, request: Request) -> Response:
        return await self._together.answer(request, self._page)

    async def _page(self, request: Request) -> Response:
        form, rows, _ = self._lists[request.url.path]
        asked = ListQuery.parse(request.query_params, form)
        names, problem = await self.names(asked)
        page: ListPage[Any] = ListPage.of((), 1)
        if not problem:  # a fleet that cannot be queried is not an empty one
            page = await asyncio.to_thread(rows, asked, names)
        known = form.is_past or bool(page.rows) or form is forms.ROLLOUTS
        return self._showing.page(
            "list.html",
            asked=asked,
            page=page,
            problem=problem,
            known=known or await asyncio.to_thread(self._kept.memory.read, nodes.is_any),
        )

    async def file(self, request: Request) -> Response:
        """Send the whole filtered list as a file."""
        form, rows, table = self._lists[request.url.path.partition(".")[0]]
        asked = ListQuery.parse(request.query_params, form).whole
        names = await self._kept.inventory.names(asked.q)
        return await file_of(
            request, lambda: table(rows(asked, names).rows), self._kept.fleet.last_updated
        )

    async def listed(self, asked: ListQuery) -> Sequence[NodeRow]:
        """Return all nodes that a list shows; raises if the expression cannot be evaluated."""
        names = await self._kept.inventory.names(asked.q)
        return (await asyncio.to_thread(self._nodes, asked.whole, names)).rows

    async def names(self, asked: ListQuery) -> tuple[Names, str]:
        """Return the nodes that an expression finds, and the reason if that failed."""
        try:
            return await self._kept.inventory.names(asked.q), ""
        except LocalpuppetError as error:
            return frozenset(), str(error)

    def _nodes(self, asked: ListQuery, names: Names) -> ListPage[Any]:
        return self._kept.memory.read(nodes.listed, asked, names, now=self._now())

    def _failures(self, asked: ListQuery, names: Names) -> ListPage[Any]:
        return self._kept.memory.read(nodes.failure_groups, asked, names)

    def _releases(self, asked: ListQuery, names: Names) -> ListPage[Any]:
        read, staged = self._kept.memory.read, self._kept.staged
        tallies = read(nodes.tallies, names)
        all_ = tallies if names is None else read(nodes.tallies, None)
        page = ListPage.of(releases(asked, tallies, staged, all_=all_), asked.page)
        if asked.page is None:
            return page
        tags = {str(one.release): partial(staged.tag, one) for one in staged.all()}
        rows = [replace(row, about=tags.get(row.release, lambda: None)()) for row in page.rows]
        return replace(page, rows=rows)

    def _rollouts(self, asked: ListQuery, _: Names) -> ListPage[Any]:
        return ListPage.of(rollouts(self._kept.rollouts.rows(), asked), asked.page)

    def _runs(self, asked: ListQuery, names: Names) -> ListPage[Any]:
        return self._kept.memory.read(run_queries.listed, asked, names, now=self._now())

    def _audit(self, asked: ListQuery, _: Names) -> ListPage[Any]:
        known = {row.id: row for row in self._kept.rollouts.rows()}
        commands = [command for row in known.values() for command in row.commands]
        # A file has every record; a page has intents, and for each rollout what is known of it.
        read, most = self._kept.memory.read, asked.form.most
        if asked.page is None:
            return read(audit_table.listed, asked, commands, limit=most)
        page = read(audit_table.intents, asked, commands, limit=most)
        return replace(page, rows=[_with_rollout(row, known.get(row.rollout)) for row in page.rows])

    def _drift(self, asked: ListQuery, names: Names) -> ListPage[Any]:
        today = day_of(self._now())
        return self._kept.memory.read(activity.listed, asked, names, today=today)

    def _now(self) -> float:
        return self._kept.clock.now().timestamp()
