"""The lists of the dashboard, as views and as files."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.history.day import DAY, day_of
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.lists import exporting
from localpuppet.web.dashboard.lists import list_query as forms
from localpuppet.web.dashboard.lists.drift import DAYS as DRIFT_DAYS
from localpuppet.web.dashboard.lists.drift import drift_groups
from localpuppet.web.dashboard.lists.exporting import Table
from localpuppet.web.dashboard.lists.failures import FailureGroup, failures
from localpuppet.web.dashboard.lists.list_page import chosen, paged
from localpuppet.web.dashboard.lists.list_query import Form, ListQuery
from localpuppet.web.dashboard.lists.releases import ReleaseListContext, releases
from localpuppet.web.dashboard.lists.rollouts import rollouts
from localpuppet.web.dashboard.live import SharedAnswers
from localpuppet.web.dashboard.run_results import KEPT, RunResult
from localpuppet.web.dashboard.tables import audit_table, run_queries
from localpuppet.web.dashboard.tables.audit_table import AuditFilter
from localpuppet.web.dashboard.tables.run_queries import RunFilter
from localpuppet.web.dashboard.template_renderer import NotThereError, TemplateRenderer
from localpuppet.web.dashboard.view_context import ViewContext

# Runs of a list, the newest that match.
MOST_RUNS = 5_000
# Audit records of a list or a file: the newest that match.
MOST_RECORDS = 10_000
# The nodes that an expression finds; `None` for all.
Names = frozenset[str] | None


@dataclass(frozen=True, slots=True)
class _List:
    form: Form
    rows: Callable[[ListQuery, Names], Awaitable[Sequence[Any]]]
    table: Callable[[Sequence[Any]], Table]
    _: KW_ONLY
    complete: Callable[[Sequence[Any]], Sequence[Any]] = lambda rows: rows
    summary: Callable[[Sequence[Any]], object] = lambda _: None


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
            _List(
                *(forms.FAILURES, self._failures, exporting.failures_table),
                complete=self.with_runs,
            ),
            _List(forms.RELEASES, self._releases, exporting.releases_table),
            _List(forms.ROLLOUTS, self._rollouts, exporting.rollouts_table),
            _List(
                *(forms.RUNS, self._runs),
                lambda runs: exporting.runs_table(self._with_resources(runs)),
                complete=self._with_resources,
            ),
            _List(forms.AUDIT, self._audit, exporting.audit_table),
            _List(forms.DRIFT, self._drift, exporting.drift_table, summary=drift_groups),
        )
        self._lists = {list_.form.path: list_ for list_ in lists}

    async def page(self, request: Request) -> Response:
        """Show a page of a list."""
        return await self._together.answer(request, self._page)

    async def _page(self, request: Request) -> Response:
        list_ = self._lists[request.url.path]
        asked = ListQuery.parse(request.query_params, list_.form)
        names, problem = await self.names(asked)
        # A fleet that cannot be queried is not an empty one.
        rows = [] if problem else await list_.rows(asked, names)
        page = paged(rows, asked.page)
        return self._showing.page(
            f"{list_.form.path[1:]}.html",
            asked=asked,
            page=replace(page, rows=await asyncio.to_thread(list_.complete, page.rows)),
            problem=problem,
            known=bool(self._kept.fleet.rows),
            most_runs=MOST_RUNS,
            summary=await asyncio.to_thread(list_.summary, rows),
        )

    async def file(self, request: Request) -> Response:
        """Send the whole filtered list as a file."""
        path, _, form = request.url.path.partition(".")
        list_ = self._lists[path]
        if form not in exporting.FORMS:
            raise NotThereError(f"lists are available as {', '.join(exporting.FORMS)}")
        asked = ListQuery.parse(request.query_params, list_.form)
        names = await self._kept.inventory.names(asked.q)
        media, written = exporting.FORMS[form]
        rows = await list_.rows(asked, names)
        last_updated = self._kept.fleet.last_updated
        # Ten thousand rows take long to write: others have their turn meanwhile.
        text = await asyncio.to_thread(lambda: written(list_.table(rows), last_updated))
        headers = {"content-disposition": f'attachment; filename="{path[1:]}.{form}"'}
        return Response(text, media_type=f"{media}; charset=utf-8", headers=headers)

    def with_runs(self, groups: Sequence[FailureGroup]) -> Sequence[FailureGroup]:
        """Return failures with what is known of the runs of their newest nodes; reads the disk."""
        with self._kept.memory.snapshot() as connection:
            worked = run_queries.last_good(connection, [group.newest[0] for group in groups])
            broke = run_queries.first_bad(connection, worked.values())
            causes = run_queries.causes(connection, [group.newest for group in groups])
        return [
            replace(
                group,
                worked=worked.get(group.newest[0]),
                broke=broke[group.newest[0]].release if group.newest[0] in broke else "",
                cause=causes.get(group.newest, ""),
            )
            for group in groups
        ]

    def _with_resources(self, runs: Sequence[RunResult]) -> Sequence[RunResult]:
        return self._kept.memory.read(run_queries.with_resources, runs)

    async def listed(self, asked: ListQuery) -> Sequence[NodeRow]:
        """Return all nodes that a list shows; raises if the expression cannot be evaluated."""
        return await self._nodes(asked, await self._kept.inventory.names(asked.q))

    async def names(self, asked: ListQuery) -> tuple[Names, str]:
        """Return the nodes that an expression finds, and the reason if that failed."""
        try:
            return await self._kept.inventory.names(asked.q), ""
        except LocalpuppetError as error:
            return frozenset(), str(error)

    async def _nodes(self, asked: ListQuery, names: Names) -> Sequence[Any]:
        return chosen(self._kept.fleet.standing, asked, names=names, now=self._now())

    async def _failures(self, asked: ListQuery, names: Names) -> Sequence[Any]:
        seen = await asyncio.to_thread(self._kept.memory.failures)
        return failures(self._kept.fleet.standing, asked, names=names, seen=seen)

    async def _releases(self, asked: ListQuery, names: Names) -> Sequence[Any]:
        ground = await asyncio.to_thread(self._staged, names)
        return releases(self._kept.fleet.standing, asked, ground)

    def _staged(self, names: Names) -> ReleaseListContext:
        kept = self._kept.staged
        staged = kept.all()
        signed = {str(release.release): kept.signed(release) for release in staged}
        return ReleaseListContext(
            names=names, staged=staged, signed=signed, previous=kept.previous()
        )

    async def _rollouts(self, asked: ListQuery, _: Names) -> Sequence[Any]:
        return rollouts(await asyncio.to_thread(self._kept.rollouts.rows), asked)

    async def _runs(self, asked: ListQuery, names: Names) -> Sequence[Any]:
        if asked.name:
            known = self._kept.fleet.standing.rows if names is None else names
            names = frozenset(name for name in known if asked.name in name)
        if asked.node:
            names = frozenset({asked.node}) if names is None else names & {asked.node}
        now, read = self._now(), self._kept.memory.read
        wanted = RunFilter(
            since=now - KEPT if asked.since is None else asked.since,
            until=now + DAY if asked.until is None else asked.until,
            kinds=[kind for kind in Kind if asked.result in ("", kind.part)],
            nodes=names,
        )
        runs = await asyncio.to_thread(read, run_queries.matching, wanted, limit=MOST_RUNS)
        runs.sort(key=lambda run: getattr(run, asked.sort), reverse=asked.down)
        return runs

    async def _audit(self, asked: ListQuery, _: Names) -> Sequence[Any]:
        wanted = AuditFilter(
            caller=asked.caller,
            node=asked.node,
            action=asked.action,
            decision=asked.decision,
            is_single=bool(asked.rollouts),
            text=asked.name,
        )
        read = self._kept.memory.read
        records = await asyncio.to_thread(read, audit_table.audit, wanted, limit=MOST_RECORDS)
        return records if asked.down else records[::-1]

    async def _drift(self, asked: ListQuery, names: Names) -> Sequence[Any]:
        since = day_of(self._now()) - DRIFT_DAYS
        drifting = await asyncio.to_thread(
            self._kept.memory.read, run_queries.drifting, since=since
        )
        some = [
            drift
            for drift in drifting
            if asked.name in drift.node and (names is None or drift.node in names)
        ]
        some.sort(key=lambda drift: getattr(drift, asked.sort), reverse=asked.down)
        return some

    def _now(self) -> float:
        return self._kept.clock.now().timestamp()
