"""The present state of the fleet: presence, inventory, listeners, and shared answers."""

import asyncio
import json
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus.key_value import KeyListing
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.fleet import Fleet, FleetLimits
from localpuppet.web.dashboard.live import FRESH, MOST, MOST_NAMES, Live, SharedAnswers, event
from localpuppet.web.dashboard.run_table import KEPT
from tests.fleet.inventory.entries import entry
from tests.web.make import Site, kept, status


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def rows(site: Site) -> dict[str, str]:
    return {row.node: row.state for row in kept(site.memory)}


def test_a_node_that_leaves_is_unresponsive_and_keeps_its_last_run(site: Site) -> None:
    site.tell(status("a", site.now(), last_run={"outcome": "changed"}))
    site.leave("a")
    row = site.row("a")
    assert row is not None
    assert (row.state, row.outcome) == ("unresponsive", Kind.CHANGED)


def test_nodes_missing_from_a_listing_are_unresponsive_unless_they_came_later(site: Site) -> None:
    site.tell(status("a", site.now()), status("b", site.now()))
    site.fleet.miss(set(), 1)
    site.remember()
    assert rows(site) == {"a": "unresponsive", "b": "idle"}


def test_another_store_with_lower_revisions_is_accepted(site: Site) -> None:
    site.revision = 100
    site.tell(status("a", site.now()), status("b", site.now()))
    site.revision = 1
    site.listing(status("a", site.now(), state="applying"))
    assert rows(site) == {"a": "applying", "b": "unresponsive"}


def test_a_restarted_dashboard_remembers_the_fleet(site: Site) -> None:
    site.tell(status("a", site.now(), last_run={"outcome": "failed"}))
    again = Fleet(site.memory, believe=lambda *_: {}, now=site.now)
    assert [(row.node, row.outcome) for row in kept(site.memory)] == [("a", Kind.FAILED)]
    assert again.last_updated == site.now()
    assert again.away


def test_a_repeated_status_is_no_change(site: Site) -> None:
    site.tell(status("a", site.now()))
    before = site.fleet.changes.revision
    site.clock.advance(20)
    site.tell(status("a", site.now() - 20))
    assert site.fleet.changes.revision == before
    site.tell(status("a", site.now() - 20, state="applying"))
    assert site.fleet.changes.since(before) == {"a"}


def test_an_outage_and_its_end_are_a_single_change_each(site: Site) -> None:
    site.fleet.answered()
    before = site.fleet.changes.revision
    for _ in range(3):
        site.fleet.lost("refused")
    assert (site.fleet.changes.revision, site.fleet.away) == (before + 1, "refused")
    site.fleet.answered()
    assert (site.fleet.changes.revision, site.fleet.away) == (before + 2, "")
    assert site.fleet.changes.since(before) is None


def test_strangers_do_not_fill_the_memory(tmp_path: Path) -> None:
    site = Site(tmp_path, limits=FleetLimits(nodes=2))
    site.tell(*(status(f"n{number}", site.now()) for number in range(5)))
    site.tell(status("Not A Name", site.now()))
    assert sorted(rows(site)) == ["n0", "n1"]
    site.list_(entry("n9", at=0.0))
    assert "n9" not in rows(site)


def test_untrusted_nodes_keep_no_trusted_node_out(tmp_path: Path) -> None:
    site = Site(tmp_path, limits=FleetLimits(nodes=2))
    eve = {"state": "not trusted", "reason": "unknown key"}
    site.tell(*({"node": f"a{number}", **eve} for number in range(3)))
    site.tell(status("web01", site.now()), {"node": "a9", **eve})
    assert rows(site) == {"a1": "not trusted", "web01": "idle"}
    site.tell(status("web02", site.now()), status("web03", site.now()))
    assert sorted(rows(site)) == ["web01", "web02"]


def test_a_node_that_was_never_trusted_leaves_no_row(site: Site) -> None:
    site.tell({"node": "eve", "state": "not trusted", "reason": "unknown key"})
    site.leave("eve")
    assert rows(site) == {}


def test_the_inventory_adds_roles_and_removes_forgotten_nodes(site: Site) -> None:
    site.tell(status("a", site.now()))
    site.list_(entry("a", at=0.0, roles=("web",)), entry("b", at=0.0, roles=("db",)))
    assert {row.node: row.roles for row in kept(site.memory)} == {"a": ("web",), "b": ("db",)}
    site.list_()
    assert {row.node: row.roles for row in kept(site.memory)} == {"a": ()}


def test_a_node_that_left_the_inventory_while_it_was_online_goes_with_its_agent(site: Site) -> None:
    """Also after a restart; a node that never had an entry goes if it was forgotten."""
    site.tell(status("a", site.now()), status("b", site.now()), status("c", site.now()))
    site.list_(entry("a", at=0.0), entry("b", at=0.0))
    site.list_()
    assert rows(site) == dict.fromkeys("abc", "idle")
    site.leave("a")
    assert "a" not in rows(site)
    site.fleet = Fleet(site.memory, believe=lambda *_: {}, now=site.now)
    site.fleet.take(KeyListing(entries=(), revision=9, more=False))
    site.list_()
    assert rows(site) == {"c": "unresponsive"}
    site.fleet.listed({}, all_=(), forgotten={"c"})
    site.remember()
    assert rows(site) == {}


def test_a_node_that_was_unresponsive_for_long_is_forgotten(site: Site) -> None:
    site.tell(status("a", site.now()))
    site.leave("a")
    site.clock.advance(KEPT - 1)
    site.list_()
    assert rows(site) == {"a": "unresponsive"}
    site.clock.advance(2)
    site.list_()
    assert rows(site) == {}


async def test_a_large_listing_is_processed_in_parts(tmp_path: Path) -> None:
    site = Site(tmp_path, limits=FleetLimits(together=10, pause=0.0))
    site.listing(*(status(f"n{number:02}", site.now()) for number in range(100)))
    assert len(rows(site)) == 10
    site.tell(status("n99", site.now(), state="applying"))  # newer than what waits
    site.leave("n98")
    site.fleet.miss(set(), 0)  # older than all
    turns = 0
    keeping = asyncio.create_task(site.fleet.keep_up())
    while len(rows(site)) < 99 and turns < 100:
        await asyncio.sleep(0)
        site.remember()
        turns += 1
    assert turns >= 9
    assert "n98" not in rows(site)
    assert rows(site).pop("n99") == "applying"
    site.tell(status("n98", site.now()))  # at once: nothing waits
    assert rows(site)["n98"] == "idle"
    keeping.cancel()


async def test_waiting_entries_of_a_store_are_forgotten_with_it(tmp_path: Path) -> None:
    site = Site(tmp_path, limits=FleetLimits(together=1, pause=0.0))
    site.listing(status("a", site.now()), status("old", site.now()))
    site.fleet.take(KeyListing(entries=(), revision=1))
    keeping = asyncio.create_task(site.fleet.keep_up())
    for _ in range(3):
        await asyncio.sleep(0)
    keeping.cancel()
    site.remember()
    assert rows(site) == {"a": "unresponsive"}


def test_a_reader_far_behind_loads_everything(site: Site) -> None:
    limits = FleetLimits(changes=3)
    site.fleet = fleet = Fleet(site.memory, believe=lambda *_: {}, now=site.now, limits=limits)
    fleet.answered()
    for number in range(4):
        fleet.listed({f"n{number}": ()}, all_=[f"n{other}" for other in range(4)])
        site.remember()
    assert fleet.changes.since(2) == {"n1", "n2", "n3"}
    assert fleet.changes.since(1) is None
    assert fleet.changes.since(fleet.changes.revision) == set()
    assert rows(site)["n0"] == "unresponsive"


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


async def test_a_page_gets_its_next_event_after_a_pause_that_the_end_cuts(site: Site) -> None:
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


class Views:
    """A view that counts its calls, and waits until the test lets it continue."""

    def __init__(self, site: Site) -> None:
        self.together = SharedAnswers(site.fleet.changes, site.clock)
        self.go = asyncio.Event()
        self.count = 0

    async def view(self, _: Request) -> Response:
        self.count += 1
        await self.go.wait()
        if self.count > 90:
            raise InvalidInputError("is bad")
        return Response(str(self.count))

    async def ask(self, query: str = "", *, event: str = "") -> str:
        server = ("127.0.0.1", 80)
        headers = [(b"last-event-id", event.encode())] if event else []
        scope = {"type": "http", "path": "/", "query_string": query.encode(), "headers": headers}
        request = Request({**scope, "scheme": "http", "server": server, "method": "GET"})
        return bytes((await self.together.answer(request, self.view)).body).decode()


async def test_concurrent_requests_of_a_url_share_an_answer(site: Site) -> None:
    views = Views(site)
    asking = [asyncio.create_task(views.ask()) for _ in range(200)]
    other = asyncio.create_task(views.ask("page=2"))
    await asyncio.sleep(0)
    asking[0].cancel()
    views.go.set()
    assert set(await asyncio.gather(*asking[1:])) == {"1"}
    assert await other == "2"
    assert views.count == 2


async def test_a_change_or_a_second_makes_another_answer(site: Site) -> None:
    views = Views(site)
    views.go.set()
    assert [await views.ask(), await views.ask()] == ["1", "1"]
    site.fleet.answered()
    assert await views.ask() == "2"
    site.clock.advance(FRESH)
    assert await views.ask() == "3"


async def test_a_page_that_received_an_event_gets_an_answer_as_new_as_the_event(site: Site) -> None:
    views = Views(site)
    views.go.set()
    event = str(site.fleet.changes.revision)
    assert await views.ask() == "1"
    site.fleet.stir()
    assert await views.ask(event=event) == "1"
    assert await views.ask(event=str(site.fleet.changes.revision)) == "2"
    # A number of another server, or no number: the last state.
    for number in ("999999", "no number"):
        before = views.count
        site.fleet.stir()
        assert await views.ask(event=number) == str(before + 1)


async def test_changes_while_a_view_rests_are_in_one_answer(site: Site) -> None:
    views = Views(site)
    first = asyncio.create_task(views.ask())
    while not views.count:
        await asyncio.sleep(0)
    asking = []
    for _ in range(5):  # while it is being made, and while it rests
        site.fleet.stir()
        asking.append(asyncio.create_task(views.ask()))
        await asyncio.sleep(0)
        site.clock.advance(0.001)
        views.go.set()
    assert await first == "1"
    assert await asyncio.gather(*asking) == ["2"] * 5
    site.fleet.stir()
    assert await views.ask() == "3"


async def test_an_error_is_everybodys_and_few_answers_are_kept(site: Site) -> None:
    views = Views(site)
    views.go.set()
    for number in range(MOST + 1):
        await views.ask(f"page={number}")
    assert await views.ask("page=0") == str(MOST + 2)
    views.count = 90
    for _ in range(2):
        with pytest.raises(InvalidInputError):
            await views.ask("bad")
    assert views.count == 91
