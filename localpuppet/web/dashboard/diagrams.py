"""The views of diagrams: the order in which nodes run, and which roles make others run.

One diagram is drawn at a time, and the last ones are cached. A file gets a content security policy
for its picture.
"""

import asyncio
import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.fleet.edges.cycles import relations
from localpuppet.rollout.diagram import Diagram, dot_text, kick_diagram, plan_diagram
from localpuppet.rollout.plan import Plan
from localpuppet.rollout.svg import STYLE
from localpuppet.web.dashboard.inventory_questions import Inventory
from localpuppet.web.dashboard.list_query import PLAN, ListQuery
from localpuppet.web.dashboard.template_renderer import NotThereError, TemplateRenderer

MAX_KEPT = 16
NODE_PAGE = "/nodes/"

# Returns a diagram as SVG with links to the pages of nodes, as `rollout.svg.draw_svg` does.
Draw = Callable[[Diagram, str], str]


class Pictures:
    """Draws diagrams one after the other, and keeps the last ones.

    Args:
        draw: Draws a diagram, or raises `UnavailableError`.
    """

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
        """Return a diagram as a file.

        The content security policy allows the picture's own style sheet, by its digest, and nothing
        else.

        Args:
            form: `svg` or `dot`.
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
class DiagramViews:
    """The views of diagrams, and the same diagrams as files."""

    inventory: Inventory
    pictures: Pictures
    showing: TemplateRenderer

    async def plan(self, request: Request) -> Response:
        """Show in which order nodes run."""
        asked = ListQuery.parse(request.query_params, PLAN)
        plan: Plan | None = None
        notes: Sequence[str] = ()
        problem, picture = "", None
        try:
            plan, notes = await self._planned(asked)
            picture = await self.pictures.inline(await asyncio.to_thread(plan_diagram, plan))
        except LocalpuppetError as error:
            problem = str(error)
        query = asked.url.partition("?")[2]
        site = self.inventory.site
        return self.showing.page(
            "plan.html",
            asked=asked,
            plan=plan,
            picture=picture,
            notes=notes,
            problem=problem,
            query=query,
            site="" if site is None else site.name,
        )

    async def plan_file(self, request: Request) -> Response:
        """Send the output of `localpuppet rollout plan` with `--svg` or `--dot`."""
        plan, _ = await self._planned(ListQuery.parse(request.query_params, PLAN))
        diagram = await asyncio.to_thread(plan_diagram, plan)
        return await self.pictures.file(diagram, request.path_params["form"])

    async def _planned(self, asked: ListQuery) -> tuple[Plan, Sequence[str]]:
        inventory = self.inventory
        return await inventory.plan(await inventory.names(asked.q))

    async def kicks(self, _: Request) -> Response:
        """Show which roles make others run."""
        kick_relations, problem, picture = None, "", None
        try:
            kick_relations = relations(await self.inventory.links())
            picture = await self.pictures.inline(kick_diagram(kick_relations))
        except LocalpuppetError as error:
            problem = str(error)
        return self.showing.page(
            "kicks.html", found=kick_relations, picture=picture, problem=problem
        )

    async def kicks_file(self, request: Request) -> Response:
        """Send the output of `localpuppet kicks` with `--svg` or `--dot`."""
        diagram = kick_diagram(relations(await self.inventory.links()))
        return await self.pictures.file(diagram, request.path_params["form"])
