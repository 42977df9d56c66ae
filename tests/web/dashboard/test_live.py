"""Events."""

import asyncio
import json
from pathlib import Path

import pytest

from localpuppet.web.dashboard.live import MOST_NAMES, Live, event
from tests.web.dashboard.site import Site, status


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def nodes(text: str) -> list[str] | None:
    (data,) = [line for line in text.splitlines() if line.startswith("data: ")]
    found: list[str] | None = json.loads(data.removeprefix("data: "))["nodes"]
    return found


async def test_changes_are_gathered_and_named(site: Site) -> None:
    live = Live(site.fleet.changes, asyncio.Event())
    events = live.events(None)
    assert (await anext(events)).startswith("retry: ")
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    site.fleet.away = ""
    site.tell(status("a", site.now()), status("b", site.now()))
    assert nodes(await waiting) == ["a", "b"]
    await events.aclose()  # type: ignore[attr-defined]  # a generator


async def test_listeners_with_the_same_last_change_share_one_text(site: Site) -> None:
    live = Live(site.fleet.changes, asyncio.Event(), pause=0.01)
    site.fleet.answered()
    seen = site.fleet.changes.revision
    site.tell(status("a", site.now()))
    streams = [live.events(seen) for _ in range(20)]
    for events in streams:
        await anext(events)
    first, *others = [await anext(events) for events in streams]
    assert nodes(first) == ["a"]
    assert all(text is first for text in others)
    site.tell(status("b", site.now()))
    late = live.events(seen + 1)
    await anext(late)
    assert nodes(await anext(late)) == ["b"]
    assert nodes(await anext(streams[0])) == ["b"]


async def test_a_page_receives_its_next_event_after_a_pause_that_the_end_interrupts(
    site: Site,
) -> None:
    now, leave = asyncio.get_running_loop().time, asyncio.Event()
    live = Live(site.fleet.changes, leave, pause=0.5)
    site.fleet.answered()
    events, other = live.events(None), live.events(None)
    await anext(events)
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    begun = now()
    site.tell(status("a", site.now()))
    assert nodes(await waiting) == ["a"]
    await anext(other)
    waiting = asyncio.ensure_future(anext(other))
    await asyncio.sleep(0)
    site.tell(status("b", site.now()))
    assert nodes(await waiting) == ["b"]
    assert now() - begun >= live.pause
    assert nodes(await anext(events)) == ["b"]
    live.pause = 3600.0
    site.tell(status("c", site.now()))
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    leave.set()
    assert nodes(await waiting) == ["c"]


async def test_a_listener_that_reconnects_gets_the_missed_changes(site: Site) -> None:
    live = Live(site.fleet.changes, asyncio.Event())
    site.fleet.answered()
    seen = site.fleet.changes.revision
    site.tell(status("a", site.now()))
    events = live.events(seen)
    await anext(events)
    assert nodes(await anext(events)) == ["a"]
    # A revision of another server: anything may have changed.
    events = live.events(10_000)
    await anext(events)
    assert nodes(await anext(events)) is None


async def test_a_quiet_connection_is_kept_and_ends_with_the_page(site: Site) -> None:
    leave = asyncio.Event()
    live = Live(site.fleet.changes, leave, alive=0.01)
    events = live.events(None)
    await anext(events)
    assert await anext(events) == ": alive\n\n"
    leave.set()
    assert [text async for text in events] == []


async def test_a_listener_that_loses_access_gets_no_further_event(site: Site) -> None:
    live = Live(site.fleet.changes, asyncio.Event(), alive=0.01)
    may = [True]
    events = live.events(None, stays=lambda: may[0])
    await anext(events)
    assert await anext(events) == ": alive\n\n"
    may[0] = False
    site.tell(status("a", site.now()))
    assert [text async for text in events] == []
    quiet = live.events(None, stays=lambda: may[0])
    await anext(quiet)
    assert [text async for text in quiet] == []


async def test_streams_are_counted(site: Site) -> None:
    live = Live(site.fleet.changes, asyncio.Event(), most=1)
    events = live.events(None)
    await anext(events)
    assert live.full
    assert [text async for text in live.events(None)] == []  # a listener of the same moment
    assert live.full
    await events.aclose()  # type: ignore[attr-defined]  # a generator
    assert not live.full


def test_many_names_are_all_names() -> None:
    assert nodes(event(1, {f"n{number}" for number in range(MOST_NAMES)})) is not None
    assert nodes(event(1, {f"n{number}" for number in range(MOST_NAMES + 1)})) is None
