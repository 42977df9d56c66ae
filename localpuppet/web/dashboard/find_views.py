"""The views of the search field: a page of matches, and suggestions while the user types."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.web.dashboard.lists.finding import (
    MOST_OF_KIND,
    Findings,
    FindSources,
    find,
    run_bounds,
)
from localpuppet.web.dashboard.template_renderer import TemplateRenderer
from localpuppet.web.dashboard.view_context import ViewContext

# Characters of a text to search; a node's name has at most as many.
MAX_TEXT = 253
SCHEMA = 1


class FindViews:
    """The views of the search field.

    Args:
        parts: The sources.
        showing: Shows templates.
    """

    def __init__(self, parts: ViewContext, showing: TemplateRenderer) -> None:
        self._parts = parts
        self._showing = showing

    async def page(self, request: Request) -> Response:
        """Redirect to what a text means, or show its matches by kind."""
        text = _text(request)
        if not text:
            return RedirectResponse("/nodes", 303)
        sources, problem = await self._sources(text)
        found = await asyncio.to_thread(find, text, sources)
        if found.target:
            return RedirectResponse(found.target, 303)
        return self._showing.page(
            "find.html",
            text=text,
            found=found,
            total=sum(group.total for group in found.groups),
            most=MOST_OF_KIND,
            problem=problem,
        )

    async def suggestions(self, request: Request) -> Response:
        """Send terms that a text may begin, as JSON."""
        text, found = _text(request), Findings(groups=())
        if text:
            sources, _ = await self._sources(text)
            found = await asyncio.to_thread(find, text, sources)
        listed = [{"term": term, "kind": kind} for term, kind in found.suggestions]
        return JSONResponse({"schema": SCHEMA, "suggestions": listed})

    async def _sources(self, text: str) -> tuple[FindSources, str]:
        """Return what is searched, and why classes are not."""
        parts, problem = self._parts, ""
        classes: Mapping[str, int] = {}
        try:
            classes = await parts.inventory.classes(patience=parts.patience)
        except LocalpuppetError as error:
            problem = str(error)
        standing, bounds = parts.fleet.standing, run_bounds(text.removeprefix("run:"))
        runs = []
        if bounds is not None:
            runs = await asyncio.to_thread(parts.memory.runs_between, *bounds, MOST_OF_KIND + 1)
        staged = await asyncio.to_thread(parts.staged.all)
        return FindSources(
            nodes={name: row.outcome.value for name, row in standing.rows.items()},
            releases=standing.tallies.keys() | {str(one.release) for one in staged},
            roles=Counter(role for row in parts.fleet.rows for role in row.roles),
            classes=classes,
            rollouts=await asyncio.to_thread(parts.rollouts.rows),
            runs=runs,
        ), problem


def _text(request: Request) -> str:
    return request.query_params.get("text", "").strip()[:MAX_TEXT]
