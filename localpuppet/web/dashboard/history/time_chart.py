"""The chart of runs over time: the geometry of two panels of bars, for the template.

Horizontal places are per cent of the width, and vertical ones are pixels. So bars stretch with the
page, and text keeps its size. Bars begin at whole hours or days in UTC.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.history.day import DAY
from localpuppet.fleet.inventory.run_end import BAD, CHANGED, GOOD, Kind
from localpuppet.web.dashboard.list_query import runs
from localpuppet.web.dashboard.lists.rollouts import RolloutRow
from localpuppet.web.dashboard.run_results import HOUR

# The vertical places of the panels: top and bottom in pixels.
FAILURES, RUNS_PANEL = (34.0, 84.0), (118.0, 208.0)
HEIGHT = 234.0
# Rollouts that are marked, the newest.
MOST_MARKERS = 40
# The part of a bar's place that the bar fills.
_FILLED = 0.86
# A label further to the right would not fit on a telephone.
_LAST_LABEL = 86


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartRange:
    """A range of time that a chart can show.

    Attributes:
        title: What it is called.
        bar: Seconds of a bar.
        bars: The number of bars.
        label_every: How many bars a label is for.
        label: The form of a label, see `strftime`.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBar:
    """The runs that ended in a part of the range.

    Attributes:
        begin: Seconds since 1970, UTC.
        counts: Runs by `GOOD`, `CHANGED` and `BAD`.
        title: The same in words.
        x: Its left side, per cent.
        rectangles: Class, top and height of each of its rectangles.
        url: The list of its runs.
        failures_url: The list of its failed runs.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMarker:
    """The start of a rollout.

    Attributes:
        rollout: Its row.
        x: Its place, per cent.
    """

    rollout: RolloutRow
    x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChart:
    """A chart.

    Attributes:
        range: What it shows.
        bars: The bars, the oldest first.
        width: The width of a bar, per cent.
        lines: The horizontal lines with the numbers beside them: place and number.
        labels: The labels of the time axis: place and text.
        markers: Starts of rollouts.
        since: When the history begins, if that is in the range; else `None`.
    """

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

    Args:
        counts: Runs by the number of their hour since 1970, and by result.
        rollouts: Known rollouts.
        range_: The range.
        now: Seconds since 1970, UTC.
        since: When the history begins; `None` without one.
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
    """Return the range that a URL names; the usual one for an empty word.

    Raises:
        InvalidInputError: The word is not a range.
    """
    try:
        return RANGES[word or USUAL]
    except KeyError as error:
        names = ", ".join(RANGES)
        raise InvalidInputError(f"is not one of {names}", where="range") from error
