"""The views of the topology: the order in which nodes run, and which roles make others run.

One diagram is drawn at a time, and the last ones are cached. A file gets a content security policy
for its picture.
"""

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.fleet.edges.cycles import Relations, relations
from localpuppet.rollout.diagram import Diagram, dot_text, kick_diagram, plan_diagram
from localpuppet.rollout.plan import Plan
from localpuppet.rollout.svg import STYLE
from localpuppet.web.dashboard.inventory_questions import Inventory
from localpuppet.web.dashboard.list_query import KICKS, PLAN, ListQuery
from localpuppet.web.dashboard.view_context import Draw, NotThereError, TemplateRenderer

MAX_KEPT = 16
NODE_PAGE = "/nodes/"


class Pictures:
    """Draws diagrams one after the other, and keeps the last ones."""

    def __init__(self, draw: Draw) -> None:
        self._draw = lru_cache(MAX_KEPT)(draw)
        self._slot = asyncio.Semaphore(1)

    async def inline(self, diagram: Diagram) -> tuple[Markup, str]:
        """Return a diagram as a part of a view, and why it could not be drawn; one is empty."""
        try:
            return Markup(await self._svg(diagram, NODE_PAGE)), ""  # noqa: S704 - escaped by `svg`
        except UnavailableError as error:
            return Markup(), str(error)

    async def file(self, diagram: Diagram, form: str) -> Response:
        """Return a diagram as a file of the form `svg` or `dot`.

        The content security policy allows the picture's own style sheet, by its digest, and nothing
        else.
        """
        if form == "dot":
            return PlainTextResponse(dot_text(diagram))
        if form != "svg":
            raise NotThereError("a picture is a file of the form 'svg' or 'dot'")
        svg = await self._svg(diagram, "")
        style = svg.partition("<style>")[2].partition("</style>")[0]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; sandbox; frame-ancestors 'none'"
        headers = {"content-security-policy": policy}
        return Response(svg, media_type="image/svg+xml", headers=headers)

    async def _svg(self, diagram: Diagram, node_page: str) -> str:
        async with self._slot:
            return await asyncio.to_thread(self._draw, diagram, node_page)


async def style_sheet(_: Request) -> Response:
    """Return the style sheet of diagrams that are part of a view."""
    return Response(STYLE, media_type="text/css")


@dataclass(frozen=True, slots=True)
class TopologyViews:
    """The views of diagrams, and the same diagrams as files."""

    inventory: Inventory
    pictures: Pictures
    showing: TemplateRenderer

    async def page(self, request: Request) -> Response:
        """Show in which order nodes run, or which roles make others run."""
        asked, shown, picture, problem = _asked(request), None, None, ""
        notes: Sequence[str] = ()
        try:
            shown, notes, diagram = await self._answer(asked)
            picture = await self.pictures.inline(diagram)
        except LocalpuppetError as error:
            problem = str(error)
        site = self.inventory.site
        return self.showing.page(
            "topology.html",
            asked=asked,
            shown=shown,
            picture=picture,
            notes=notes,
            problem=problem,
            site="" if site is None else site.name,
        )

    async def file(self, request: Request) -> Response:
        """Send what `localpuppet rollout plan` or `kicks` prints with `--svg` or `--dot`."""
        _, _, diagram = await self._answer(_asked(request))
        return await self.pictures.file(diagram, request.path_params["form"])

    async def _answer(self, asked: ListQuery) -> tuple[Plan | Relations, Sequence[str], Diagram]:
        if asked.form is KICKS:
            kicks = relations(await self.inventory.links())
            return kicks, kicks.notes, kick_diagram(kicks)
        plan, notes = await self.inventory.plan(await self.inventory.names(asked.q))
        return plan, notes, await asyncio.to_thread(plan_diagram, plan)


def _asked(request: Request) -> ListQuery:
    is_plan = request.url.path.startswith(PLAN.path)
    return ListQuery.parse(request.query_params, PLAN if is_plan else KICKS)
