"""The views of diagrams: the order in which nodes run, and which roles make others run."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.edges.cycles import relations
from localpuppet.rollout.diagram import kick_diagram, plan_diagram
from localpuppet.rollout.plan import Plan
from localpuppet.web.dashboard.inventory_questions import Inventory
from localpuppet.web.dashboard.list_query import PLAN, ListQuery
from localpuppet.web.dashboard.pictures import Pictures
from localpuppet.web.dashboard.template_renderer import TemplateRenderer


@dataclass(frozen=True, slots=True)
class DiagramViews:
    """The views of diagrams, and the same diagrams as files.

    Attributes:
        inventory: Nodes and their links.
        pictures: Draws diagrams.
        showing: Shows templates.
    """

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
        """Send the output of `localpuppet plan` with `--svg` or `--dot`."""
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
