"""Runs over time: the chart of the overview, the days of a node, the map of the fleet, and drift.

Horizontal places are per cent of the width, and vertical ones are pixels. So bars stretch with the
page, and text keeps its size. Bars begin at whole hours or days in UTC.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import DAY, day_of
from localpuppet.fleet.inventory.run_end import BAD, CHANGED, GOOD, PARTS, Kind
from localpuppet.web.dashboard import run_queries
from localpuppet.web.dashboard.inventory_questions import FactTexts, fact_query
from localpuppet.web.dashboard.list_query import MAP, ListPage, ListQuery, runs
from localpuppet.web.dashboard.live import SharedAnswers
from localpuppet.web.dashboard.nodes import MapNode, Names, brief
from localpuppet.web.dashboard.rollouts import RolloutRow
from localpuppet.web.dashboard.run_queries import NodeDrift, drifting
from localpuppet.web.dashboard.run_table import HOUR
from localpuppet.web.dashboard.view_context import TemplateRenderer, ViewContext

# The vertical places of the panels: top and bottom in pixels.
FAILURES, RUNS_PANEL = (34.0, 84.0), (118.0, 208.0)
HEIGHT = 234.0
# Rollouts that are marked, the newest.
MOST_MARKERS = 40
# The part of a bar's place that the bar fills.
_FILLED = 0.86
# A label further to the right would not fit on a telephone.
_LAST_LABEL = 86


class ChartRange(Value):
    """A range of time that a chart can show."""

    title: str
    bar: float
    bars: int
    label_every: int
    label: str

    def begin(self, now: float) -> float:
        """Return when the first bar begins, seconds since 1970."""
        return (int(now // self.bar) - self.bars + 1) * self.bar


RANGES: Mapping[str, ChartRange] = {
    "24h": ChartRange(title="24 hours", bar=HOUR, bars=24, label_every=6, label="%H:%M"),
    "7d": ChartRange(title="7 days", bar=6 * HOUR, bars=28, label_every=8, label="%-d %b"),
    "90d": ChartRange(title="90 days", bar=DAY, bars=90, label_every=15, label="%-d %b"),
}
USUAL = "24h"


class ChartBar(Value):
    """The runs that ended in a part of the range: by `GOOD`, `CHANGED` and `BAD`."""

    begin: float
    counts: Mapping[str, int]
    title: str
    x: float
    rectangles: Sequence[tuple[str, float, float]]
    url: str
    failures_url: str

    @property
    def total(self) -> int:
        """Return the number of runs."""
        return sum(self.counts.values())


class RolloutMarker(Value):
    rollout: RolloutRow
    x: float


class TimeChart(Value):
    """A chart, whose history may begin in its range (`since`)."""

    range: ChartRange
    bars: Sequence[ChartBar]
    width: float
    lines: Sequence[tuple[float, int]]
    labels: Sequence[tuple[float, str]]
    markers: Sequence[RolloutMarker]
    since: float | None

    @property
    def height(self) -> float:
        """Return the height in pixels."""
        return HEIGHT

    def sum(self, part: str = "") -> int:
        """Return the number of runs, of all or of one part."""
        return sum(bar.counts[part] if part else bar.total for bar in self.bars)


def time_chart(
    counts: Mapping[tuple[int, Kind], int],
    rollouts: Iterable[RolloutRow],
    *,
    range_: ChartRange,
    now: float,
    since: float | None,
) -> TimeChart:
    """Return the chart of a range that ends now.

    `counts` are runs by hour since 1970 and result. The history begins at `since`, if there is one.
    """
    begin, share = range_.begin(now), 100 / range_.bars
    sums = [Counter({GOOD: 0, CHANGED: 0, BAD: 0}) for _ in range(range_.bars)]
    for (hour, kind), count in counts.items():
        number = int((hour * HOUR - begin) // range_.bar)
        if 0 <= number < range_.bars:
            sums[number][kind.part] += count
    tops = (
        _round_up(max(item[BAD] for item in sums)),
        _round_up(max(item[GOOD] + item[CHANGED] for item in sums)),
    )
    bars = [
        _bar(begin + number * range_.bar, item, range_, tops, x=number * share)
        for number, item in enumerate(sums)
    ]
    known = [
        rollout
        for rollout in rollouts
        if rollout.started_at is not None and rollout.started_at >= begin
    ]
    known.sort(key=lambda rollout: rollout.started_at or 0.0)
    return TimeChart(
        range=range_,
        bars=bars,
        width=share * _FILLED,
        lines=[*_lines(FAILURES, tops[0]), *_lines(RUNS_PANEL, tops[1])],
        labels=[
            (bar.x, _moment(bar.begin, range_.label))
            for bar in bars
            if bar.begin // range_.bar % range_.label_every == 0 and bar.x < _LAST_LABEL
        ],
        markers=[
            RolloutMarker(rollout=rollout, x=_place(rollout.started_at or 0.0, begin, range_))
            for rollout in known[-MOST_MARKERS:]
        ],
        since=since if since is not None and since > begin else None,
    )


def _bar(
    begin: float, counts: Counter[str], range_: ChartRange, tops: tuple[int, int], *, x: float
) -> ChartBar:
    rectangles = []
    for parts, (top, bottom), most in (
        (((BAD, "failed"),), FAILURES, tops[0]),
        (((GOOD, "unchanged"), (CHANGED, "changed")), RUNS_PANEL, tops[1]),
    ):
        at = bottom
        for part, style in parts:
            height = (bottom - top) * counts[part] / most
            at -= height
            if counts[part]:
                rectangles.append((style, round(at, 1), round(max(height, 1.0), 1)))
    asked = runs(since=begin, until=begin + range_.bar)
    end = _moment(begin + range_.bar, "%H:%M" if range_.bar < DAY else "%-d %b")
    return ChartBar(
        begin=begin,
        counts=counts,
        title=f"{_moment(begin, '%-d %b %H:%M')} to {end} UTC: {counts.total()}"
        f" {'run' if counts.total() == 1 else 'runs'},"
        f" {counts[CHANGED]} changed, {counts[BAD]} failed",
        x=round(x, 3),
        rectangles=rectangles,
        url=asked.url,
        failures_url=asked.with_(result=BAD).url,
    )


def _lines(panel: tuple[float, float], most: int) -> Iterable[tuple[float, int]]:
    top, bottom = panel
    return (top, most), (bottom, 0)


def _round_up(number: int) -> int:
    """Return the next number of the form 1, 2 or 5 times a power of ten, at least 1."""
    power = int(10 ** int(math.log10(max(number, 1))))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= number)


def _place(at: float, begin: float, range_: ChartRange) -> float:
    return round(100 * (at - begin) / (range_.bar * range_.bars), 2)


def _moment(seconds: float, form: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def range_of(word: str) -> ChartRange:
    """Return the range that a URL names; the usual one for an empty word."""
    try:
        return RANGES[word or USUAL]
    except KeyError as error:
        names = ", ".join(RANGES)
        raise InvalidInputError(f"is not one of {names}", where="range") from error


DAYS = 14
# Class and letter of a cell by its worst result.
_LOOKS = {BAD: ("failed", "F"), CHANGED: ("changed", "C"), GOOD: ("unchanged", "✓")}


class DayCell(Value):
    """A day, such as `Mon 23`: its runs as in `ChartBar`, and the class of its worst result."""

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
    """Return the cells of a node, the oldest first; `counts` are by day since 1970 and result."""
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


class NodeCell(Value):
    node: str
    word: str
    style: str


class CellGroup(Value):
    """Nodes with something in common."""

    name: str
    total: int
    counts: Sequence[tuple[str, int]]
    cells: Sequence[NodeCell]
    url: str


def heat_map(
    rows: Iterable[MapNode], *, name_of: Callable[[MapNode], str], query_of: Callable[[str], str]
) -> Sequence[CellGroup]:
    """Return the groups, sorted by name; at most `MOST_GROUPS`, the largest.

    `name_of` returns a node's group, or empty; `query_of` the expression for a group, or empty.
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
    return [_group(name, groups[name], query_of(name), total) for name in sorted(largest)]


def _group(
    name: str, members: list[tuple[int, str, NodeCell]], query: str, total: int
) -> CellGroup:
    members.sort(key=lambda cell: cell[:2])
    counts = Counter(cell.word for _, _, cell in members)
    room = max(FEWEST, MOST_CELLS * len(members) // max(MOST_CELLS, total))
    return CellGroup(
        name=name,
        total=len(members),
        counts=[(word, counts[word]) for word, _ in LOOKS if counts[word]],
        cells=[cell for _, _, cell in members[:room]],
        url=ListQuery(q=query).url if query else "",
    )


# Seconds for which the time of a release's first run is used again.
FIRST_FOR = 60.0


@dataclass(slots=True, eq=False)
class HistoryViews:
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
        facts = FactTexts(texts={}, queries={})
        try:
            if by != ROLE:
                facts = await self.parts.inventory.fact(by)
        except LocalpuppetError as error:
            problem = str(error)

        def name_of(row: MapNode) -> str:
            return row.roles if by == ROLE else facts.texts.get(row.node, "")

        def query_of(name: str) -> str:
            if by != ROLE:
                return facts.queries.get(name, "")
            return fact_query((ROLE,), name) if name and ", " not in name else ""

        def read() -> Sequence[CellGroup]:
            rows = self.parts.memory.read(brief, now=now)
            return heat_map(rows, name_of=name_of, query_of=query_of)

        groups = await asyncio.to_thread(read)
        return self.showing.page("map.html", by=by, groups=groups, looks=LOOKS, problem=problem)


DRIFT_DAYS = 7


class DriftGroup(Value):
    """A resource that drifts, first on the node with most corrections."""

    resource: str
    place: str
    count: int
    nodes: Sequence[str]
    newest: NodeDrift


def listed(connection: Connection, asked: ListQuery, names: Names, *, today: int) -> ListPage[Any]:
    """Return a page of resources that drift on the requested nodes; all pairs for a file."""
    rows = [
        row
        for row in drifting(connection, since=today - DRIFT_DAYS)
        if asked.name in row.node and (names is None or row.node in names)
    ]
    rows.sort(key=lambda row: getattr(row, asked.order), reverse=asked.down)
    if asked.page is None:
        return ListPage.of(rows, None)
    groups: dict[tuple[str, str], list[NodeDrift]] = {}
    for row in rows:
        groups.setdefault((row.resource, row.place), []).append(row)
    resources = [
        DriftGroup(
            resource=resource,
            place=place,
            count=sum(member.count for member in members),
            nodes=[member.node for member in members],
            newest=max(members, key=lambda member: member.last),
        )
        for (resource, place), members in groups.items()
    ]
    if asked.order == "count":
        resources.sort(key=lambda group: group.count, reverse=asked.down)
    return ListPage.of(resources, asked.page)
