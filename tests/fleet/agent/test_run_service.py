"""When the agent asks for runs, and how it notices runs and holds that are not its own."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.agent.run_service import LONGEST, RunTraces, Timer, notice
from localpuppet.fleet.inventory.presence import splay

PERIOD = 1800.0
NODES = [NodeName.parse(f"web{number:03}.example.com") for number in range(400)]


class Site:
    def __init__(self, *, phase: float, now: float, every: float = PERIOD) -> None:
        self.runs = 0
        self.timer = Timer(every, phase=phase, now=now, due=self._due)

    def _due(self) -> None:
        self.runs += 1

    def sleep_until(self, now: float, end: float) -> list[float]:
        """Sleep as the timer requires, up to `end`; return when it requested runs."""
        asked = []
        while now <= end:
            before = self.runs
            pause = self.timer.step(now)
            asked += [now] * (self.runs - before)
            assert 0 < pause <= LONGEST
            now += pause
        return asked


def test_a_node_has_the_same_second_for_ever_and_another_than_its_neighbours() -> None:
    splays = [splay(node, PERIOD) for node in NODES]
    assert splays == [splay(node, PERIOD) for node in NODES]
    assert len(set(splays)) == len(NODES)
    assert splay(NODES[0], 2 * PERIOD) == pytest.approx(2 * splays[0])


def test_a_fleet_is_spread_over_the_whole_period() -> None:
    quarters = [0, 0, 0, 0]
    for node in NODES:
        second = splay(node, PERIOD)
        assert 0 <= second < PERIOD
        quarters[int(4 * second / PERIOD)] += 1
    assert min(quarters) > len(NODES) / 8, quarters


@pytest.mark.parametrize("phase", [0.0, 0.5, 17.25, 1799.5])
@pytest.mark.parametrize("start", [0.0, 17.25, 1_795_000_000.0])
def test_the_timer_requests_a_run_a_period_at_the_nodes_second(phase: float, start: float) -> None:
    asked = Site(phase=phase, now=start).sleep_until(start, start + 5 * PERIOD)
    assert len(asked) == 5
    assert [when % PERIOD for when in asked] == pytest.approx([phase] * 5)
    assert all(when > start for when in asked), "a start is no reason for a run"


def test_a_timer_looks_once_a_minute_and_asks_once_though_it_slept_too_long() -> None:
    site = Site(phase=100.0, now=0.0)
    assert site.timer.step(0.0) == LONGEST
    assert site.timer.step(70.0) == 30.0
    assert site.timer.step(100.0) == LONGEST
    assert site.runs == 1
    site = Site(phase=10.0, now=0.0)
    site.timer.step(5 * PERIOD + 100)
    assert site.runs == 1
    assert site.sleep_until(5 * PERIOD + 100, 6 * PERIOD + 10) == [6 * PERIOD + 10]


def test_if_the_clock_is_set_back_the_next_run_comes_within_a_period() -> None:
    now = 1_795_000_000.0
    site = Site(phase=10.0, now=now)
    back = now - 365 * 86400
    asked = site.sleep_until(back, back + PERIOD + 1)
    assert len(asked) == 1
    assert asked[0] % PERIOD == pytest.approx(10.0)


def test_a_clock_that_was_set_back_within_the_period_or_forward_asks_once() -> None:
    site = Site(phase=10.0, now=0.0)
    site.timer.step(10.0)
    site.timer.step(100.0)
    assert site.sleep_until(50.0, PERIOD + 20) == [PERIOD + 10]
    assert site.runs == 2
    ahead = 365 * 86400.0
    assert site.sleep_until(ahead, ahead + 9) == [ahead]
    short = Site(phase=1.0, now=0.0, every=5.0)  # shorter than the longest look
    assert short.sleep_until(0.0, 20.0) == [1.0, 6.0, 11.0, 16.0]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for name in ("runs", "holds"):
        (tmp_path / name).mkdir()
    (tmp_path / "lock").touch()
    for name in ("runs", "holds", "lock"):
        os.utime(tmp_path / name, (1, 1))
    return tmp_path


CHANGES: dict[str, Callable[[Path], object]] = {
    "a run took the lock": lambda state: (state / "lock").write_text("{}"),
    "a record": lambda state: (state / "runs/20261120T140312.482913Z-7f3a").mkdir(),
    "a hold": lambda state: (state / "holds/1.json").touch(),
    "the first hold ever": lambda state: (state / "holds").rmdir(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_trace_is_seen_once(state: Path, name: str) -> None:
    traces = RunTraces(state)
    assert not traces.changed()
    CHANGES[name](state)
    assert [traces.changed(), traces.changed()] == [True, False]


def test_only_new_traces_are_a_change(state: Path) -> None:
    CHANGES["a hold"](state)
    traces = RunTraces(state)
    assert not traces.changed(), "it existed before"
    (state / "metrics.prom").touch()
    (state / "cache").mkdir()
    assert not traces.changed(), "these are no traces"
    traces = RunTraces(state / "var")
    assert not traces.changed(), "nothing ever ran on this node"
    (state / "var/runs").mkdir(parents=True)
    assert [traces.changed(), traces.changed()] == [True, False]


class CallCounter:
    def __init__(self) -> None:
        self.count = 0
        self._news = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._news.set()

    async def until(self, count: int) -> None:
        while self.count < count:
            await self._news.wait()
            self._news.clear()


async def test_a_signal_makes_the_watch_report_a_change_at_once(state: Path) -> None:
    calls, changed = CallCounter(), asyncio.Event()
    task = asyncio.create_task(notice(RunTraces(state), changed, calls))
    changed.set()
    while changed.is_set():
        await asyncio.sleep(0)
    assert calls.count == 0, "nothing has changed"
    CHANGES["a hold"](state)
    changed.set()
    await calls.until(1)
    assert not changed.is_set(), "so that the agent notices the next change, too"
    CHANGES["a record"](state)
    changed.set()
    await calls.until(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.count == 2


async def test_a_cancellation_that_arrives_with_a_signal_ends_the_watch(state: Path) -> None:
    changed = asyncio.Event()
    task = asyncio.create_task(notice(RunTraces(state), changed, CallCounter()))
    await asyncio.sleep(0)
    changed.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
