"""The chart of the overview, the days of a node, and the map of the fleet."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.history.day import DAY, day_of
from localpuppet.fleet.inventory.run_end import BAD, CHANGED, GOOD, PARTS, Kind
from localpuppet.web.dashboard.history.time_chart import ChartRange, TimeChart, time_chart
from localpuppet.web.dashboard.list_query import MAP, ListQuery, runs
from localpuppet.web.dashboard.lists.rollouts import RolloutRow
from localpuppet.web.dashboard.live import SharedAnswers
from localpuppet.web.dashboard.nodes import MapNode, brief
from localpuppet.web.dashboard.tables import run_queries
from localpuppet.web.dashboard.template_renderer import TemplateRenderer
from localpuppet.web.dashboard.view_context import ViewContext

DAYS = 14
# Class and letter of a cell by its worst result.
_LOOKS = {BAD: ("failed", "F"), CHANGED: ("changed", "C"), GOOD: ("unchanged", "✓")}


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCell:
    """A day.

    Attributes:
        name: The day, such as `Mon 23`.
        counts: Runs by `GOOD`, `CHANGED` and `BAD`.
        style: The class of its worst result; empty without a run.
        letter: The same as a letter.
        url: The list of its runs.
    """

    name: str
    counts: Mapping[str, int]
    style: str
    letter: str
    url: str

    @property
    def words(self) -> str:
        """Return the counts in words."""
        parts = [f"{self.counts[part]} {part}" for part in PARTS if self.counts[part]]
        return ", ".join(parts) or "no run"


def days_before(now: float) -> Sequence[int]:
    """Return the numbers of the days of a strip, the oldest first."""
    return range(day_of(now) - DAYS + 1, day_of(now) + 1)


def day_strip(
    node: str, counts: Mapping[tuple[int, Kind], int], *, now: float
) -> Sequence[DayCell]:
    """Return the cells of a node, the oldest first.

    Args:
        node: The node.
        counts: Its runs by the number of the day since 1970, UTC, and by result.
        now: Seconds since 1970, UTC.
    """
    sums = {day: Counter[str]() for day in days_before(now)}
    for (day, kind), number in counts.items():
        if day in sums:
            sums[day][kind.part] += number
    return [_cell(node, day, day_counts) for day, day_counts in sums.items()]


def _cell(node: str, day: int, counts: Counter[str]) -> DayCell:
    worst = next((part for part in PARTS if counts[part]), "")
    style, letter = _LOOKS.get(worst, ("", "–"))
    return DayCell(
        name=f"{datetime.fromtimestamp(day * DAY, UTC):%a %-d}",
        counts=counts,
        style=style,
        letter=letter,
        url=runs(node=node, since=day * DAY, until=(day + 1) * DAY).url,
    )


# Cells of all groups together, and of one at least; the rest of a group is a number.
MOST_CELLS, FEWEST = 3_000, 20
# Groups, the largest.
MOST_GROUPS = 100
ROLE = "role"
# Word and class by `NodeRow.severity`; the style sheet has a letter for each class.
_HEAT_MAP_LOOKS = (
    ("failed", "failed"),
    ("unresponsive", "unresponsive"),
    ("not trusted", "not-trusted"),
    ("late", "late"),
    ("on hold", "on-hold"),
    ("no good run", "pending"),
    ("good", "unchanged"),
)
_CHANGED = "changed", "changed"
LOOKS = (*_HEAT_MAP_LOOKS[:-1], _CHANGED, _HEAT_MAP_LOOKS[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCell:
    """A node.

    Attributes:
        node: Its name.
        word: Its state.
        style: The same as a class.
    """

    node: str
    word: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellGroup:
    """Nodes with something in common.

    Attributes:
        name: The role or the value of the fact.
        total: The number of nodes.
        counts: Nodes by state, in order of urgency.
        cells: Some of them, the most urgent first.
        url: The list of the nodes, or empty.
    """

    name: str
    total: int
    counts: Sequence[tuple[str, int]]
    cells: Sequence[NodeCell]
    url: str


def heat_map(
    rows: Iterable[MapNode], *, by: str, name_of: Callable[[MapNode], str]
) -> Sequence[CellGroup]:
    """Return the groups, sorted by name; at most `MOST_GROUPS`, the largest.

    Args:
        rows: The nodes.
        by: `ROLE`, or the path of a fact.
        name_of: Returns the group of a node; empty for none.
    """
    groups: dict[str, list[tuple[int, str, NodeCell]]] = {}
    for row in rows:
        severity = row.severity
        changed = severity == len(_HEAT_MAP_LOOKS) - 1 and row.outcome.part == CHANGED
        word, style = _CHANGED if changed else _HEAT_MAP_LOOKS[severity]
        cell = NodeCell(node=row.node, word=word, style=style)
        groups.setdefault(name_of(row), []).append((2 * severity - changed, row.node, cell))
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:MOST_GROUPS]
    total = sum(len(groups[name]) for name in largest)
    return [_group(name, groups[name], by, total) for name in sorted(largest)]


def _group(name: str, members: list[tuple[int, str, NodeCell]], by: str, total: int) -> CellGroup:
    members.sort(key=lambda cell: cell[:2])
    counts = Counter(cell.word for _, _, cell in members)
    room = max(FEWEST, MOST_CELLS * len(members) // max(MOST_CELLS, total))
    single = name and not (by == ROLE and ", " in name) and '"' not in name
    return CellGroup(
        name=name,
        total=len(members),
        counts=[(word, counts[word]) for word, _ in LOOKS if counts[word]],
        cells=[cell for _, _, cell in members[:room]],
        url=ListQuery(q=f'{by}="{name}"').url if single else "",
    )


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

        def read() -> Sequence[CellGroup]:
            def name_of(row: MapNode) -> str:
                return row.roles if by == ROLE else facts.get(row.node, "")

            return heat_map(self.parts.memory.read(brief, now=now), by=by, name_of=name_of)

        groups = await asyncio.to_thread(read)
        return self.showing.page(
            "map.html", by=by, groups=groups, looks=LOOKS, paths=(ROLE, *PATHS), problem=problem
        )
