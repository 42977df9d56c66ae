"""The dashboard's views, one method each, and their routes as an ASGI application.

Of the pictures in views of the topology, one is drawn at a time, and the last ones are cached. A
file gets a content security policy for its picture.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.converter import from_record
from localpuppet.base.formats.names import NodeName, RolloutId, RunId
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.edges.cycles import Relations, relations
from localpuppet.fleet.edges.links import Links
from localpuppet.fleet.inventory.presence import UNRESPONSIVE, NodeRow
from localpuppet.node.runs.run_replies import RunReport
from localpuppet.rollout.diagram import Diagram, dot_text, kick_diagram, plan_diagram
from localpuppet.rollout.plan import Plan
from localpuppet.rollout.rollout_view import RolloutView, TimeLine
from localpuppet.rollout.svg import STYLE
from localpuppet.web.access.rules import (
    ENTER,
    AccessMiddleware,
    AccessRefusal,
    LoopbackDoor,
    Visitor,
)
from localpuppet.web.dashboard import list_query, run_queries
from localpuppet.web.dashboard import nodes as node_table
from localpuppet.web.dashboard.action_views import ActionViews
from localpuppet.web.dashboard.activity import RANGES, HistoryViews, range_of
from localpuppet.web.dashboard.differences import MOST_ROWS, DifferenceViews, node_differences
from localpuppet.web.dashboard.differences import PATH as DIFFERENCE
from localpuppet.web.dashboard.finding import FindViews
from localpuppet.web.dashboard.inventory_questions import MAX_WANTED, Inventory, RunLogTail, tree_of
from localpuppet.web.dashboard.list_query import KICKS, PLAN, ListQuery
from localpuppet.web.dashboard.listing import NodeLists
from localpuppet.web.dashboard.live import SharedAnswers, event_number
from localpuppet.web.dashboard.releases import sources_in_use
from localpuppet.web.dashboard.rollout_actions import buttons
from localpuppet.web.dashboard.rollouts import (
    RolloutRow,
    active_rollouts,
    decisions_of,
    groups_of,
    reported_runs,
)
from localpuppet.web.dashboard.run_table import GOOD_KINDS, RunRow
from localpuppet.web.dashboard.view_context import (
    HERE,
    Draw,
    NotThereError,
    TemplateRenderer,
    ViewContext,
)

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


RUNS = 25
# Decisions of a rollout that are shown, the newest.
MOST_DECISIONS = 50
# Nodes that are named on each side of a node's links.
MOST_NAMES = 100
Known = TypeVar("Known")


class Pages:
    def __init__(self, parts: ViewContext) -> None:
        self._parts = parts
        me = "" if parts.actor is None else parts.actor.name
        self._showing = TemplateRenderer(parts.fleet, parts.clock, me, parts.staged.web_url)
        self.acting = None
        self._together = SharedAnswers(parts.fleet.changes, parts.clock)
        self.topology = TopologyViews(parts.inventory, Pictures(parts.draw), self._showing)
        self.differing = DifferenceViews(
            parts.staged, parts.fleet, self._showing, reads_code=parts.reads_code
        )
        self.finding = FindViews(parts, self._showing)
        self.history = HistoryViews(parts, self._showing, self._together)
        self.lists = NodeLists(parts, self._showing, self._together)
        if parts.actor is not None and parts.entrance is not None:
            self.acting = ActionViews(
                parts,
                self._showing,
                listed=self.lists.listed,
                actor=parts.actor,
                door=parts.entrance,
            )

    async def enter(self, door: LoopbackDoor, request: Request) -> Response:
        """Exchange the secret of the link for a cookie."""
        cookie = door.sessions.enter(request.query_params.get("key", ""))
        if cookie is None:
            return self._showing.problem(
                403,
                "This link is invalid or was used before.",
                "It works once, for ten minutes. For a new link, start 'localpuppet web' again.",
            )
        # Not a redirect: a browser that comes from elsewhere would not send a strict cookie then.
        response = self._showing.page("entered.html")
        response.set_cookie(door.cookie, cookie, httponly=True, samesite="strict")
        return response

    async def overview(self, request: Request) -> Response:
        """Show the state of the fleet."""
        return await self._together.answer(request, self._overview)

    async def _overview(self, request: Request) -> Response:
        asked = list_query.ListQuery.parse(request.query_params, list_query.OVERVIEW)
        now, parts = self._now(), self._parts
        # If the inventory cannot be queried, the template shows that, and no empty fleet.
        names, problem = await self.lists.names(asked)
        summary, groups, in_use = await asyncio.to_thread(parts.memory.read, _summary, names, now)
        rollouts = await asyncio.to_thread(self._rollouts)
        sources = sources_in_use(in_use)[: node_table.MOST]
        chart = await self.history.chart(range_of(asked.range_), rollouts, now)
        return self._showing.page(
            "overview.html",
            asked=asked,
            found=summary,
            failures=groups.rows[: node_table.MOST],
            all_failures=groups.total,
            rollouts=active_rollouts(rollouts, summary.rollout_holds, now=now),
            most_names=MOST_NAMES,
            sources=sources,
            first_runs=await self.history.first_runs([source.newest for source in sources]),
            chart=chart,
            ranges=RANGES,
            problem=problem,
        )

    def _rollouts(self) -> Sequence[RolloutRow]:
        try:
            return self._parts.rollouts.rows()
        except StateError:
            return []  # the list of rollouts shows the error

    async def node(self, request: Request) -> Response:
        name = NodeName.parse(request.path_params["node"])
        before_text = request.query_params.get("before")
        before = RunId.parse(before_text) if before_text else None
        read = self._parts.memory.read
        row = await asyncio.to_thread(read, node_table.of_name, name)
        entry = await self._parts.inventory.entry(name)
        if row is None and entry is None:
            raise NotThereError(f"no node has the name {name}", hint="see the list of nodes")
        runs = await asyncio.to_thread(self._parts.memory.runs, name, limit=RUNS + 1, before=before)
        wanted = request.query_params.get("fact", "")[:MAX_WANTED]
        before_, after, problem = await self._links(name)
        is_bad = row is not None and row.outcome.bad
        worked = await asyncio.to_thread(read, run_queries.last_good, [name] * is_bad)
        broke = await asyncio.to_thread(read, run_queries.first_bad, worked.values())
        return self._showing.page(
            "node.html",
            row=row or NodeRow(node=name),
            entry=entry,
            tree=None if entry is None else tree_of(entry.facts, wanted),
            wanted=wanted,
            worked=worked.get(name),
            broke=broke.get(name),
            days=await self.history.days(name, self._now()),
            runs=runs[:RUNS],
            more=runs[RUNS - 1].run if len(runs) > RUNS else "",
            first=before is None,
            made_run_by=before_,
            makes_run=after,
            problem=problem,
        )

    async def compared(self, request: Request) -> Response:
        """Show two nodes side by side."""
        names = [NodeName.parse(request.query_params.get(key, "")) for key in ("a", "b")]
        rows = await asyncio.to_thread(self._parts.memory.read, node_table.of_names, names)
        pair = [(rows[name], await self._parts.inventory.entry(name)) for name in names]
        for name, (row, entry) in zip(names, pair, strict=True):
            if row is None and entry is None:
                raise NotThereError(f"no node has the name {name}", hint="see the list of nodes")
        nodes = [
            (row or NodeRow(node=name), entry)
            for name, (row, entry) in zip(names, pair, strict=True)
        ]
        differing, equal = await asyncio.to_thread(node_differences, *nodes)
        return self._showing.page(
            "compare.html", names=names, rows=differing, most=MOST_ROWS, equal=equal
        )

    async def run(self, request: Request) -> Response:
        """Show a run; `details=1` requests report and log from the node, `again` after an error.

        The page of a failed run requests them itself, once it is open.
        """
        name = NodeName.parse(request.path_params["node"])
        run = RunId.parse(request.path_params["run"])
        read = self._parts.memory.read
        known: RunRow | None = await asyncio.to_thread(read, run_queries.of_id, run, name)
        row = await asyncio.to_thread(read, node_table.of_name, name)
        if known is None and row is not None and row.last is not None and row.run == run:
            known = RunRow.of_end(name, row.last)  # its summary is still on its way
        if known is None:
            raise NotThereError(f"the dashboard has no result of run {run} of {name}")
        last = row if row is not None and row.run == run else None
        good, broke = await asyncio.to_thread(read, _around_failure, known)
        lines, diff = await self.differing.code(
            request, known, good.release if good else "", broke.release if broke else ""
        )
        similar = list_query.ListQuery(failure_cause="" if last is None else last.failure_cause)
        asks, reports = request.query_params.get("details", ""), self._parts.reports
        (report, no_report), (log, no_log) = (None, ""), (None, "")
        if asks:
            again = asks == "again"
            (report, no_report), (log, no_log) = await asyncio.gather(
                _answered(
                    reports.ask("report", name, run, again=again), partial(from_record, RunReport)
                ),
                _answered(reports.ask("log", name, run, again=again), RunLogTail.read),
            )
        return self._showing.page(
            "run.html",
            known=known,
            last=last,
            good=good,
            broke=broke.release if broke else known.release,
            lines=lines,
            diff=diff,
            similar=await self.lists.listed(similar) if similar.failure_cause else (),
            about=await asyncio.to_thread(self._parts.staged.about, known.release),
            asked=similar,
            strip=await asyncio.to_thread(self._parts.memory.runs, name, limit=RUNS),
            asks=asks,
            may_ask=known.outcome.bad and row is not None and row.state != UNRESPONSIVE,
            report=report,
            log=log,
            problems=[*dict.fromkeys(filter(None, (no_report, no_log)))],
        )

    async def rollout(self, request: Request) -> Response:
        """Show a rollout, group by group."""
        return await self._together.answer(request, self._rollout)

    async def _rollout(self, request: Request) -> Response:
        shown = await self._of_rollout(request, self._parts.rollouts.shown)
        report, now = shown.report, self._parts.clock.now()
        view = None if report is None else RolloutView.of(report, now)
        line = None if view is None else TimeLine.of(view, now)
        return self._showing.page(
            "rollout.html",
            row=shown.row,
            about=await asyncio.to_thread(self._parts.staged.about, shown.row.release),
            rollout=view,
            told=reported_runs(shown.reports, now=now.timestamp()),
            groups=() if view is None or line is None else groups_of(view, line),
            line=line,
            buttons=() if report is None else buttons(report),
            decisions=() if report is None else decisions_of(report)[-MOST_DECISIONS:],
        )

    async def rollout_file(self, request: Request) -> Response:
        """Send the report of a rollout, as `localpuppet rollout report --json` prints it."""
        document = (await self._of_rollout(request, self._parts.rollouts.report)).to_dict()
        # In ASCII: whatever a journal holds can be written.
        return Response(json.dumps(document), media_type="application/json")

    async def _of_rollout(self, request: Request, tell: Callable[[RolloutId], Known]) -> Known:
        rollout = RolloutId.parse(request.path_params["rollout"])
        try:
            return await asyncio.to_thread(tell, rollout)
        except InvalidInputError as error:
            raise NotThereError(error.what) from error

    async def bus(self, _: Request) -> Response:
        """Show only the state of the bus: for the script of a view that is not live."""
        return self._showing.page("bus.html")

    async def events(self, request: Request) -> Response:
        """Send changes as they come."""
        live = self._parts.live
        if live.full:
            return PlainTextResponse("too many live connections\n", status_code=503)
        visitor = Visitor.of(request.scope)
        events = live.events(
            event_number(request.headers), stays=lambda: self._parts.door.knows(visitor)
        )
        return StreamingResponse(events, media_type="text/event-stream")

    def problem(self, error: LocalpuppetError) -> Response:
        code = 404 if isinstance(error, NotThereError) else 503
        if isinstance(error, InvalidInputError):
            code = 400
        where = f"{error.where}: " if error.where else ""
        return self._showing.problem(code, error.what, error.hint, where=where)

    def refusal(self, refusal: AccessRefusal) -> Response:
        """Show why a request is refused."""
        return self._showing.problem(refusal.code, refusal.what, refusal.hint)

    def missing(self) -> Response:
        """Show that a page does not exist."""
        return self._showing.problem(404, "This page does not exist.", "Start at the overview.")

    def _now(self) -> float:
        return self._parts.clock.now().timestamp()

    async def _links(self, name: NodeName) -> tuple[Sequence[str], Sequence[str], str]:
        try:
            links = await self._parts.inventory.links(patience=self._parts.patience)
        except LocalpuppetError as error:
            return (), (), str(error)
        return _around(links, name)


def _summary(
    connection: Connection, names: node_table.Names, now: float
) -> tuple[
    node_table.Overview,
    list_query.ListPage[node_table.FailureGroup],
    Mapping[str, node_table.Tally],
]:
    worst = list_query.ListQuery.parse({}, list_query.FAILURES)
    return (
        node_table.overview(connection, names, now=now),
        node_table.failure_groups(connection, worst, names),
        node_table.tallies(connection, names),
    )


def _around_failure(connection: Connection, failed: RunRow) -> tuple[RunRow | None, RunRow | None]:
    """Return the last good run before a failed one, and the first failed run after that."""
    if not failed.outcome.bad:
        return None, None
    before, kinds = RunId(failed.run), GOOD_KINDS
    runs = run_queries.of_node(connection, failed.node, limit=1, before=before, kinds=kinds)
    broke = run_queries.first_bad(connection, runs)
    return next(iter(runs), None), broke.get(failed.node)


def _around(links: Links, name: NodeName) -> tuple[Sequence[str], Sequence[str], str]:
    before: set[str] = set()
    after: set[str] = set()
    for link in links.links:
        if name in link.ends:
            before |= link.starts
        if name in link.starts:
            after |= link.ends
    left = "some links were not evaluated" if links.unanswered else ""
    return sorted(before - {name})[:MOST_NAMES], sorted(after - {name})[:MOST_NAMES], left


async def _answered(
    answer: Awaitable[Mapping[str, Json]], read: Callable[[Mapping[str, Json]], Known]
) -> tuple[Known | None, str]:
    """Return what a node sent of a run; else why not."""
    try:
        return read(await answer), ""
    except LocalpuppetError as error:
        return None, str(error)


def application(parts: ViewContext) -> ASGIApp:
    pages = Pages(parts)

    def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, LocalpuppetError):
            return pages.problem(error)
        return pages.missing()

    node = "/nodes/{node}"
    entrance, acts = [], []
    if parts.entrance is not None:
        entrance = [Route(ENTER, partial(pages.enter, parts.entrance))]
    if pages.acting is not None:
        acting, both = pages.acting, ["GET", "POST"]
        acts = [
            Route("/nodes/do/{action}", acting.nodes, methods=both),
            Route("/rollouts/do/start", acting.start, methods=both),
            Route("/rollouts/do/preview/{preview}", acting.preview),
            Route("/rollouts/{rollout}/do/{action}", acting.act, methods=both),
        ]
    shown = Starlette(
        routes=[
            Route("/", pages.overview),
            Route(node, pages.node),
            Route(node + "/runs/{run}", pages.run),
            *acts,
            Route("/rollouts/{rollout}.json", pages.rollout_file),
            Route("/rollouts/{rollout}", pages.rollout),
            Route(DIFFERENCE, pages.differing.page),
            Route(DIFFERENCE + ".{form}", pages.differing.file),
            Route("/compare", pages.compared),
            Route("/find", pages.finding.page),
            Route("/find.json", pages.finding.suggestions),
            *(
                route
                for form in (list_query.PLAN, list_query.KICKS)
                for route in (
                    Route(form.path, pages.topology.page),
                    Route(form.path + ".{form}", pages.topology.file),
                )
            ),
            Route("/diagram.css", style_sheet),
            Route("/map", pages.history.map),
            Route("/bus", pages.bus),
            Route("/events", pages.events),
            *entrance,
            *(Route(path, pages.lists.page) for path in list_query.LISTS),
            *(Route(path + ".{form}", pages.lists.file) for path in list_query.LISTS),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ],
        exception_handlers={LocalpuppetError: refused, HTTPException: refused},
    )
    return AccessMiddleware(shown, parts.door.refusal, pages.refusal)
