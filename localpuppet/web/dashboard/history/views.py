"""The chart of the overview, the days of a node, and the map of the fleet."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.web.dashboard.history.day_strip import DayCell, day_strip, days_before
from localpuppet.web.dashboard.history.heat_map import LOOKS, ROLE, heat_map, role_of
from localpuppet.web.dashboard.history.time_chart import ChartRange, TimeChart, time_chart
from localpuppet.web.dashboard.lists.list_query import MAP, ListQuery
from localpuppet.web.dashboard.lists.rollouts import RolloutRow
from localpuppet.web.dashboard.shared_answers import SharedAnswers
from localpuppet.web.dashboard.tables import run_queries
from localpuppet.web.dashboard.template_renderer import TemplateRenderer
from localpuppet.web.dashboard.view_context import ViewContext

# Seconds for which the time of a release's first run is used again.
FIRST_FOR = 60.0
# Facts by which the map groups nodes.
PATHS = (
    "datacenter",
    "domain",
    "environment",
    "kernel",
    "os.distro.codename",
    "os.family",
    "os.name",
    "os.release.major",
    "tier",
    "virtual",
)


@dataclass(slots=True, eq=False)
class HistoryViews:
    """The views.

    Attributes:
        parts: Their data and services.
        showing: Shows templates.
        together: Shares one answer between equal requests.
    """

    parts: ViewContext
    showing: TemplateRenderer
    together: SharedAnswers
    _first: Mapping[str, float | None] = field(default_factory=dict, init=False)
    _first_until: float = field(default=0.0, init=False)

    async def chart(
        self, range_: ChartRange, rollouts: Sequence[RolloutRow], now: float
    ) -> TimeChart:
        """Return the chart of the runs of all nodes."""

        def read() -> TimeChart:
            memory = self.parts.memory
            counts, since = memory.hours(range_.begin(now)), memory.begins_at()
            return time_chart(counts, rollouts, range_=range_, now=now, since=since)

        return await asyncio.to_thread(read)

    async def first_runs(self, releases: Sequence[str]) -> Mapping[str, float | None]:
        """Return when each release ran first, as known up to a minute ago."""
        now, read = self.parts.clock.monotonic(), self.parts.memory.read
        if now >= self._first_until or self._first.keys() != {*releases}:
            self._first = {
                row: await asyncio.to_thread(read, run_queries.first_of_release, row)
                for row in releases
            }
            self._first_until = now + FIRST_FOR
        return self._first

    async def days(self, node: str, now: float) -> Sequence[DayCell]:
        """Return the last days of a node."""
        read = self.parts.memory.read
        counts = await asyncio.to_thread(read, run_queries.days_of, node, days_before(now))
        return day_strip(node, counts, now=now)

    async def map(self, request: Request) -> Response:
        """Show the map of the fleet."""
        return await self.together.answer(request, self._map)

    async def _map(self, request: Request) -> Response:
        by = ListQuery.parse(request.query_params, MAP).by_ or ROLE
        now, problem = self.parts.clock.now().timestamp(), ""
        facts: Mapping[str, str] = {}
        try:
            if by != ROLE:
                facts = await self.parts.inventory.fact(by)
        except LocalpuppetError as error:
            problem = str(error)
        groups = await asyncio.to_thread(
            heat_map,
            [*self.parts.fleet.rows],
            by=by,
            name_of=role_of if by == ROLE else lambda row: facts.get(row.node, ""),
            now=now,
        )
        return self.showing.page(
            "map.html", by=by, groups=groups, looks=LOOKS, paths=(ROLE, *PATHS), problem=problem
        )
