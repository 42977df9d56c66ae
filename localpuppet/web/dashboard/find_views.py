"""The views of the search field: a page of matches, and suggestions while the user types."""

import asyncio
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.web.dashboard.lists.finding import MOST_OF_KIND, Findings, Names, find, run_bounds
from localpuppet.web.dashboard.nodes import searched
from localpuppet.web.dashboard.run_results import RunResult
from localpuppet.web.dashboard.tables import run_queries
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
        names, problem = await self._names(text)
        findings = await asyncio.to_thread(find, text, names)
        if findings.target:
            return RedirectResponse(findings.target, 303)
        return self._showing.page(
            "find.html",
            text=text,
            found=findings,
            total=sum(group.total for group in findings.groups),
            most=MOST_OF_KIND,
            problem=problem,
        )

    async def suggestions(self, request: Request) -> Response:
        """Send terms that a text may begin, as JSON."""
        text, findings = _text(request), Findings(groups=())
        if text:
            names, _ = await self._names(text)
            findings = await asyncio.to_thread(find, text, names)
        listed = [{"term": term, "kind": kind} for term, kind in findings.suggestions]
        return JSONResponse({"schema": SCHEMA, "suggestions": listed})

    async def _names(self, text: str) -> tuple[Names, str]:
        """Return what is searched, and why classes are not."""
        parts, problem = self._parts, ""
        classes: Mapping[str, int] = {}
        try:
            classes = await parts.inventory.classes(patience=parts.patience)
        except LocalpuppetError as error:
            problem = str(error)
        runs: Sequence[RunResult] = ()
        if bounds := run_bounds(text.removeprefix("run:")):
            runs = await asyncio.to_thread(
                parts.memory.read, run_queries.between, bounds[0], bounds[1], limit=MOST_OF_KIND + 1
            )
        staged = await asyncio.to_thread(parts.staged.all)
        rollouts = await asyncio.to_thread(parts.rollouts.rows)
        nodes, ran, roles = await asyncio.to_thread(parts.memory.read, searched)
        return {
            "node": nodes,
            "run": {run.run: run.node for run in runs},
            "release": dict.fromkeys([*ran, *(str(release.release) for release in staged)], ""),
            "role": _counted(roles),
            "class": _counted(classes),
            "rollout": {row.id: row.state for row in rollouts},
            "caller": dict.fromkeys([row.caller for row in rollouts], ""),
        }, problem


def _counted(counts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{count} {'node' if count == 1 else 'nodes'}" for name, count in counts.items()}


def _text(request: Request) -> str:
    return request.query_params.get("text", "").strip()[:MAX_TEXT]
