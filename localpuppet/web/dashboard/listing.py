"""The lists of the dashboard, as views and as files."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.history.day import DAY, day_of
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard import failures, nodes
from localpuppet.web.dashboard import list_query as forms
from localpuppet.web.dashboard.list_query import Form, ListPage, ListQuery
from localpuppet.web.dashboard.lists import drift, exporting
from localpuppet.web.dashboard.lists.exporting import Table
from localpuppet.web.dashboard.lists.releases import ReleaseListContext, releases
from localpuppet.web.dashboard.lists.rollouts import rollouts
from localpuppet.web.dashboard.live import SharedAnswers
from localpuppet.web.dashboard.nodes import Names
from localpuppet.web.dashboard.run_results import KEPT
from localpuppet.web.dashboard.tables import audit_table, run_queries
from localpuppet.web.dashboard.tables.audit_table import AuditFilter
from localpuppet.web.dashboard.tables.run_queries import RunFilter
from localpuppet.web.dashboard.template_renderer import NotThereError, TemplateRenderer
from localpuppet.web.dashboard.view_context import ViewContext

# Runs of a list, the newest that match.
MOST_RUNS = 5_000
# Audit records of a list or a file: the newest that match.
MOST_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class _List:
    """A list.

    Attributes:
        form: Its parameters.
        rows: Returns the requested page, and what the template has beside it; reads the disk.
        table: Returns rows as a table.
    """

    form: Form
    rows: Callable[[ListQuery, Names], ListPage[Any]]
    table: Callable[[Sequence[Any]], Table]


class NodeLists:
    """The views of lists.

    Args:
        kept: The sources.
        showing: Shows templates.
        together: Shares one answer between equal requests.
    """

    def __init__(
        self, kept: ViewContext, showing: TemplateRenderer, together: SharedAnswers
    ) -> None:
        self._kept = kept
        self._showing = showing
        self._together = together
        lists = (
            _List(forms.NODES, self._nodes, exporting.nodes_table),
            _List(forms.FAILURES, self._failures, exporting.failures_table),
            _List(forms.RELEASES, self._releases, exporting.releases_table),
            _List(forms.ROLLOUTS, self._rollouts, exporting.rollouts_table),
            _List(forms.RUNS, self._runs, exporting.runs_table),
            _List(forms.AUDIT, self._audit, exporting.audit_table),
            _List(forms.DRIFT, self._drift, exporting.drift_table),
        )
        self._lists = {list_.form.path: list_ for list_ in lists}

    async def page(self, request: Request) -> Response:
        """Show a page of a list."""
        return await self._together.answer(request, self._page)

    async def _page(self, request: Request) -> Response:
        list_ = self._lists[request.url.path]
        asked = ListQuery.parse(request.query_params, list_.form)
        names, problem = await self.names(asked)
        page: ListPage[Any] = ListPage.of((), 1)
        if not problem:  # a fleet that cannot be queried is not an empty one
            page = await asyncio.to_thread(list_.rows, asked, names)
        return self._showing.page(
            f"{list_.form.path[1:]}.html",
            asked=asked,
            page=page,
            problem=problem,
            known=bool(page.rows) or await asyncio.to_thread(self._kept.memory.read, nodes.is_any),
            most_runs=MOST_RUNS,
            drift_groups=drift.drift_groups,
        )

    async def file(self, request: Request) -> Response:
        """Send the whole filtered list as a file."""
        path, _, form = request.url.path.partition(".")
        list_ = self._lists[path]
        if form not in exporting.FORMS:
            raise NotThereError(f"lists are available as {', '.join(exporting.FORMS)}")
        asked = ListQuery.parse(request.query_params, list_.form).whole
        names = await self._kept.inventory.names(asked.q)
        media, written = exporting.FORMS[form]
        last_updated = self._kept.fleet.last_updated
        # Ten thousand rows take long to write: others have their turn meanwhile.
        text = await asyncio.to_thread(
            lambda: written(list_.table(list_.rows(asked, names).rows), last_updated)
        )
        headers = {"content-disposition": f'attachment; filename="{path[1:]}.{form}"'}
        return Response(text, media_type=f"{media}; charset=utf-8", headers=headers)

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
        return self._kept.memory.read(failures.listed, asked, names)

    def _releases(self, asked: ListQuery, names: Names) -> ListPage[Any]:
        kept, read = self._kept.staged, self._kept.memory.read
        staged = kept.all()
        signed = {str(release.release): kept.signed(release) for release in staged}
        ground = ReleaseListContext(staged=staged, signed=signed, previous=kept.previous())
        tallies = read(nodes.tallies, names)
        all_ = tallies if names is None else read(nodes.tallies, None)
        return ListPage.of(releases(asked, tallies, ground, all_=all_), asked.page)

    def _rollouts(self, asked: ListQuery, _: Names) -> ListPage[Any]:
        return ListPage.of(rollouts(self._kept.rollouts.rows(), asked), asked.page)

    def _runs(self, asked: ListQuery, names: Names) -> ListPage[Any]:
        now = self._now()
        wanted = RunFilter(
            since=now - KEPT if asked.since is None else asked.since,
            until=now + DAY if asked.until is None else asked.until,
            kinds=[kind for kind in Kind if asked.result in ("", kind.part)],
            node=asked.node,
            name=asked.name,
            nodes=names,
        )
        return self._kept.memory.read(run_queries.listed, asked, wanted, limit=MOST_RUNS)

    def _audit(self, asked: ListQuery, _: Names) -> ListPage[Any]:
        wanted = AuditFilter(
            caller=asked.caller,
            node=asked.node,
            action=asked.action,
            decision=asked.decision,
            is_single=bool(asked.rollouts),
            text=asked.name,
        )
        return self._kept.memory.read(audit_table.listed, asked, wanted, limit=MOST_RECORDS)

    def _drift(self, asked: ListQuery, names: Names) -> ListPage[Any]:
        today = day_of(self._now())
        return self._kept.memory.read(drift.listed, asked, names, today=today)

    def _now(self) -> float:
        return self._kept.clock.now().timestamp()
