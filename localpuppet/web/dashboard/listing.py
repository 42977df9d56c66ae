"""The lists of the dashboard, as views and as files."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.web.dashboard.lists import exporting
from localpuppet.web.dashboard.lists import list_query as forms
from localpuppet.web.dashboard.lists.exporting import Table
from localpuppet.web.dashboard.lists.failures import failures
from localpuppet.web.dashboard.lists.list_page import chosen, paged
from localpuppet.web.dashboard.lists.list_query import Form, ListQuery
from localpuppet.web.dashboard.lists.releases import ReleaseListContext, releases
from localpuppet.web.dashboard.lists.rollouts import rollouts
from localpuppet.web.dashboard.shared_answers import SharedAnswers
from localpuppet.web.dashboard.template_renderer import NotThereError, TemplateRenderer
from localpuppet.web.dashboard.view_context import ViewContext

# The nodes that an expression finds; `None` for all.
Names = frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    form: Form
    template: str
    rows: Callable[[ListQuery, Names], Awaitable[Sequence[Any]]]
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
            _List(
                form=forms.NODES,
                template="nodes.html",
                rows=self._nodes,
                table=exporting.nodes_table,
            ),
            _List(
                form=forms.FAILURES,
                template="failures.html",
                rows=self._failures,
                table=exporting.failures_table,
            ),
            _List(
                form=forms.RELEASES,
                template="releases.html",
                rows=self._releases,
                table=exporting.releases_table,
            ),
            _List(
                form=forms.ROLLOUTS,
                template="rollouts.html",
                rows=self._rollouts,
                table=exporting.rollouts_table,
            ),
        )
        self._lists = {list_.form.path: list_ for list_ in lists}

    async def page(self, request: Request) -> Response:
        """Show a page of a list."""
        return await self._together.answer(request, self._page)

    async def _page(self, request: Request) -> Response:
        list_ = self._lists[request.url.path]
        asked = ListQuery.parse(request.query_params, list_.form)
        names, problem = await self.names(asked)
        # A fleet that could not be asked is not an empty one.
        rows = [] if problem else await list_.rows(asked, names)
        return self._showing.page(
            list_.template,
            asked=asked,
            page=paged(rows, asked.page),
            problem=problem,
            known=bool(self._kept.fleet.rows),
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
        signed = {str(one.release): kept.signed(one) for one in staged}
        return ReleaseListContext(
            names=names, staged=staged, signed=signed, previous=kept.previous()
        )

    async def _rollouts(self, asked: ListQuery, _: Names) -> Sequence[Any]:
        return rollouts(await asyncio.to_thread(self._kept.rollouts.rows), asked)

    def _now(self) -> float:
        return self._kept.clock.now().timestamp()
