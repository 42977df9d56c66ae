"""How the agent notices runs and holds that are not its own."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.fleet.agent.run_service import RunTraces, notice


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


def test_existing_traces_are_no_change(state: Path) -> None:
    CHANGES["a hold"](state)
    assert not RunTraces(state).changed()


def test_a_node_on_which_nothing_ever_ran_has_no_traces_until_something_does(
    tmp_path: Path,
) -> None:
    traces = RunTraces(tmp_path / "var")
    assert not traces.changed()
    (tmp_path / "var/runs").mkdir(parents=True)
    assert [traces.changed(), traces.changed()] == [True, False]


def test_files_that_are_no_traces_are_ignored(state: Path) -> None:
    traces = RunTraces(state)
    (state / "metrics.prom").touch()
    (state / "cache").mkdir()
    assert not traces.changed()


class CallCounter:
    """Counts calls, and lets a test wait for a number of them."""

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
    await asyncio.sleep(0)
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


async def test_a_signal_without_a_change_is_not_reported(state: Path) -> None:
    calls, changed = CallCounter(), asyncio.Event()
    task = asyncio.create_task(notice(RunTraces(state), changed, calls))
    changed.set()
    while changed.is_set():
        await asyncio.sleep(0)
    CHANGES["a hold"](state)
    changed.set()
    await calls.until(1)
    task.cancel()
    assert calls.count == 1


async def test_a_cancellation_that_arrives_with_a_signal_ends_the_watch(
    state: Path,
) -> None:
    changed = asyncio.Event()
    task = asyncio.create_task(notice(RunTraces(state), changed, CallCounter()))
    await asyncio.sleep(0)
    changed.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
