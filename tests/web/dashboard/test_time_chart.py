"""The chart of runs over time: what its bars count, where they are, what they lead to."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.inventory.run_end import BAD, CHANGED, GOOD, Kind
from localpuppet.web.dashboard.activity import (
    FAILURES,
    MOST_MARKERS,
    RANGES,
    RUNS_PANEL,
    range_of,
    time_chart,
)
from localpuppet.web.dashboard.rollouts import RolloutRow
from localpuppet.web.dashboard.run_row import HOUR

NOW = 1_795_000_000.0  # 2026-11-18 11:06:40
LAST = int(NOW // HOUR)


def test_a_bar_counts_the_runs_of_its_hour_and_leads_to_them() -> None:
    counts = {
        (LAST, Kind.UNCHANGED): 3,
        (LAST, Kind.CHANGED): 2,
        (LAST, Kind.COMPILE_FAILED): 1,
        (LAST - 23, Kind.FAILED): 1,
        (LAST - 24, Kind.FAILED): 9,
    }
    chart = time_chart(counts, (), range_=RANGES["24h"], now=NOW, since=None)
    assert len(chart.bars) == 24
    last = chart.bars[-1]
    assert last.counts == {GOOD: 3, CHANGED: 2, BAD: 1}
    assert last.title == "18 Nov 11:00 to 12:00 UTC: 6 runs, 2 changed, 1 failed"
    assert last.url == "/runs?from=2026-11-18T11%3A00Z&to=2026-11-18T12%3A00Z"
    assert "result=failed" in last.failures_url
    assert (chart.bars[0].begin, chart.bars[0].total) == ((LAST - 23) * HOUR, 1)
    assert (chart.sum(), chart.sum(BAD)) == (7, 2)


def test_failures_have_a_scale_of_their_own() -> None:
    counts = {(LAST, Kind.UNCHANGED): 19_000, (LAST, Kind.FAILED): 3, (LAST - 1, Kind.FAILED): 5}
    chart = time_chart(counts, (), range_=RANGES["24h"], now=NOW, since=None)
    assert [number for _, number in chart.lines] == [5, 0, 20_000, 0]
    (failed, top, height), (good, _, tall) = chart.bars[-1].rectangles
    assert (failed, good) == ("failed", "unchanged")
    assert height == pytest.approx(0.6 * (FAILURES[1] - FAILURES[0]))
    assert top + height == pytest.approx(FAILURES[1])
    assert tall == pytest.approx(0.95 * (RUNS_PANEL[1] - RUNS_PANEL[0]), abs=0.1)


@pytest.mark.parametrize(("word", "bars", "begins"), [("7d", 28, 6), ("90d", 90, 24)])
def test_longer_ranges_have_bars_of_more_hours(word: str, bars: int, begins: int) -> None:
    counts = {(LAST - back, Kind.CHANGED): 1 for back in range(2200)}
    chart = time_chart(counts, (), range_=RANGES[word], now=NOW, since=None)
    assert len(chart.bars) == bars
    assert all(bar.begin % (begins * HOUR) == 0 for bar in chart.bars)
    assert {bar.total for bar in chart.bars[:-1]} == {begins}
    assert 3 <= len(chart.labels) <= 7
    assert all(0 <= x < 86 for x, _ in chart.labels)


def test_rollouts_of_the_range_are_marked_and_a_later_history_is_named() -> None:
    rows = [
        RolloutRow(id=f"r{number}", state="done", started_at=NOW - number * HOUR)
        for number in range(100)
    ]
    rows.append(RolloutRow(id="unknown", state="damaged"))
    chart = time_chart({}, rows, range_=RANGES["24h"], now=NOW, since=NOW - HOUR)
    assert len(chart.markers) == 24
    assert chart.markers[-1].rollout.id == "r0"
    assert 95 < chart.markers[-1].x < 100
    assert chart.since == NOW - HOUR
    whole = time_chart({}, rows, range_=RANGES["7d"], now=NOW, since=NOW - 30 * 86400)
    assert len(whole.markers) == MOST_MARKERS
    assert whole.since is None


def test_an_unknown_range_is_an_error() -> None:
    assert range_of("") is RANGES["24h"]
    with pytest.raises(InvalidInputError, match="24h, 7d, 90d"):
        range_of("1y")
