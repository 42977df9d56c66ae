"""How the dashboard receives presence, over outages and beside an agent, and asks the inventory."""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.history import history_records
from localpuppet.fleet.history.history_follower import HistoryFollower
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.entry import CatalogQuery, InventoryEntry
from localpuppet.fleet.inventory.presence import NodeRow, believe
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.web.dashboard.audit_table import listed
from localpuppet.web.dashboard.fleet import Fleet
from localpuppet.web.dashboard.fleet_feed import FeedIntervals, FleetFeeder
from localpuppet.web.dashboard.inventory_questions import Inventory
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.memory import DashboardStore, HistoryIntake
from localpuppet.web.dashboard.nodes import NodeTable, of_name
from localpuppet.web.dashboard.run_table import RunRow
from tests.doubles.identities import Person, person, verifier
from tests.doubles.inventory import MemoryInventory
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock, FakeLog
from tests.fleet.inventory.entries import entry, signed
from tests.fleet.make import a_decision, a_resource, a_summary
from tests.rigs.waiting import PATIENCE
from tests.web.make import Site, kept, status

WEB, EVE = person("web01.example.com"), person("eve.example.com")
OFTEN = FeedIntervals(write=0.01, view=0.01, agent=0.01)


class Hearing:
    def __init__(self, directory: Path, store: type[DashboardStore] = DashboardStore) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.log = FakeLog()
        self.agent = False
        self.follows = 0
        self.shown_before: list[int] = []  # nodes, at the begin of each following
        self.given: KeyValue | None = None
        self.verifier = verifier(directory, WEB)
        self.view = View(directory / "view.sqlite", now=self.now)
        self.memory = store(directory / "fleet.sqlite", now=self.now)
        self.fleet = Fleet(
            self.memory,
            believe=lambda name, token: believe(self.verifier, name, token),
            now=self.now,
        )
        self.feeding = FleetFeeder(
            self.fleet,
            self.memory,
            intervals=OFTEN,
            connect=self.connect,
            view=self.view,
            follow=self.follow,
            agent_is_there=lambda: self.agent,
            log=self.log,
            follow_history=lambda board, store: HistoryFollower(
                board, self.verifier, store=store, clock=self.clock, log=self.log
            ).run(),
        )

    def now(self) -> float:
        return self.clock.now().timestamp()

    async def connect(self) -> KeyValue:
        if self.store.away:
            raise UnavailableError("no answer", where="bus")
        return MemoryKeyValue(self.store)

    async def follow(self, store: Any, leave: asyncio.Event) -> None:
        self.follows += 1
        self.shown_before.append(len(kept(self.memory)))
        leaving = asyncio.create_task(leave.wait())
        connecting = asyncio.create_task(store())
        await asyncio.wait([leaving, connecting], return_when=asyncio.FIRST_COMPLETED)
        self.given = connecting.result() if connecting.done() else None
        connecting.cancel()
        await leaving

    async def announce(self, who: Person, **more: Any) -> None:
        said = status(str(who.name), self.now(), **more)
        token = who.signer.sign(json.dumps(said).encode(), MessageKind.PRESENCE)
        await presence.announce(MemoryKeyValue(self.store), who.name, token)  # type: ignore[arg-type]  # a node's name

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        leave = asyncio.Event()
        running = asyncio.create_task(self.feeding.run(leave))
        try:
            yield
        finally:
            leave.set()
            await running
            self.view.close()

    def row(self, name: str) -> NodeRow | None:
        return self.memory.read(of_name, name)

    async def until(self, state: str, name: str = "web01.example.com") -> None:
        seen = -1
        while (row := self.row(name)) is None or row.state != state:
            await self.fleet.changes.changed(seen)
            seen = self.fleet.changes.revision


@pytest.fixture
def hearing(tmp_path: Path) -> Hearing:
    return Hearing(tmp_path)


async def test_presence_is_received_verified_and_remembered(hearing: Hearing) -> None:
    async with hearing.going_on():
        await hearing.announce(WEB)
        await hearing.announce(EVE)
        await hearing.until("idle")
        await hearing.until("not trusted", "eve.example.com")
    assert [row.node for row in kept(hearing.memory)] == ["eve.example.com", "web01.example.com"]
    hearing.memory.close()


async def test_the_history_of_nodes_is_stored_and_not_verified_again(hearing: Hearing) -> None:
    at = hearing.now() - 600
    run = a_summary(at, resources=(a_resource(1),))
    node = NodeName(WEB.name)

    async def put(form: history_records.HistoryForm[Any], *records: Any) -> tuple[str, bytes]:
        day = history_records.HistoryDay(
            node=node, day=int(at // history_records.DAY), records=records, dropped=0
        )
        key = history_records.history_key(node, form.kind, day.day)
        value = WEB.signer.sign(day.to_payload(), form.message)
        await MemoryKeyValue(hearing.store).put(key, value)
        return key, hashlib.sha256(value).digest()

    async with hearing.going_on():
        await put(history_records.RUNS, run)
        audit = await put(history_records.AUDIT, a_decision(at))
        asked = ListQuery()
        while not hearing.memory.read(listed, asked, limit=9).rows:
            await hearing.fleet.changes.changed(hearing.fleet.changes.revision)
        (known,) = hearing.memory.runs(str(node), limit=9)
        assert known == RunRow.of_summary(str(node), run)
        assert known.resources
        await put(history_records.RUNS, run, a_summary(at + 60))
        while len(hearing.memory.runs(str(node), limit=9)) < 2:
            await hearing.fleet.changes.changed(hearing.fleet.changes.revision)
    # The records of a batch are written with the next batch.
    again = HistoryIntake(hearing.memory, lambda _: None, lambda *_: None, lambda _: None)
    key, digest = audit
    assert await again.unknown({key: digest, "/other": digest}) == {"/other"}
    assert await again.unknown({key: b"x" * 32}) == {key}
    hearing.memory.close()


async def test_an_outage_is_shown_until_it_ends(hearing: Hearing) -> None:
    async with hearing.going_on():
        await hearing.announce(WEB)
        await hearing.until("idle")
        hearing.store.away = True
        hearing.store.wake()
        while not hearing.fleet.away:
            await hearing.fleet.changes.changed(hearing.fleet.changes.revision)
        row = hearing.row("web01.example.com")
        assert row is not None
        assert row.state == "idle"
        with pytest.raises(UnavailableError):
            while True:
                await hearing.feeding.store()
                await asyncio.sleep(0)
        hearing.store.away = False
        await hearing.announce(WEB, state="applying")
        await hearing.until("applying")
        assert hearing.fleet.away == ""


async def test_an_outage_and_its_end_are_logged_once_each(hearing: Hearing) -> None:
    hearing.store.away = True
    async with hearing.going_on():
        while not hearing.log.lines:
            await asyncio.sleep(0.01)
        hearing.store.away = False
        await hearing.announce(WEB)
        await hearing.until("idle")
        while hearing.given is None:
            await asyncio.sleep(0.01)
        while len(hearing.log.lines) < 2:
            await asyncio.sleep(0.01)
    assert hearing.log.lines == [
        ("warning", "the bus is unreachable: bus: no answer"),
        ("info", "the bus is reachable again"),
    ]


async def test_the_inventory_is_followed_when_all_nodes_are_shown(hearing: Hearing) -> None:
    nodes = [person(f"web{number:03}.example.com") for number in range(120)]
    for node in nodes:
        await hearing.announce(node)
    async with hearing.going_on():
        while not hearing.follows:
            await asyncio.sleep(0.01)
    assert hearing.shown_before == [len(nodes)]


async def test_the_inventory_is_followed_if_presence_cannot_be_read(hearing: Hearing) -> None:
    hearing.store.away = True
    hearing.feeding.intervals = replace(OFTEN, first=0.01)
    async with hearing.going_on():
        while not hearing.follows:
            await asyncio.sleep(0.01)
    assert hearing.shown_before == [0]


async def test_the_agent_of_this_machine_is_left_alone(hearing: Hearing) -> None:
    hearing.agent = True
    async with hearing.going_on():
        await hearing.announce(WEB)
        await hearing.until("idle")
        assert hearing.follows == 0
        hearing.agent = False
        while hearing.follows != 1:
            await asyncio.sleep(0.01)
        hearing.agent = True


async def test_roles_come_from_the_view_of_an_agent_too(hearing: Hearing, tmp_path: Path) -> None:
    agents = View(tmp_path / "view.sqlite", now=hearing.now)
    said = entry("web01.example.com", at=hearing.now(), roles=("web",))
    async with hearing.going_on():
        token = signed(WEB, said)
        arrived = ReceivedEntry(node=said.node, token=token, found=EntryRows.of(said), revision=3)
        agents.take([arrived], revision=3)
        await hearing.until("unresponsive")
    (row,) = kept(hearing.memory)
    assert (row.roles, row.in_inventory) == (("web",), True)
    agents.close()


class FullDiskStore(DashboardStore):
    """Refuses the first three writes."""

    tries = 0

    @contextmanager
    def changing(self, *, last_updated: float | None = None) -> Iterator[NodeTable]:
        self.tries += 1
        if self.tries < 4:
            raise StateError("no space left on device", where="fleet.sqlite")
        with super().changing(last_updated=last_updated) as table:
            yield table


async def test_a_full_disk_is_logged_once_and_loses_nothing(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path, FullDiskStore)
    async with hearing.going_on():
        await hearing.announce(WEB)
        while "no space left" not in hearing.fleet.unsaved:
            await hearing.fleet.changes.changed(hearing.fleet.changes.revision)
        await hearing.until("idle")
        assert hearing.fleet.unsaved == ""
        while cast("FullDiskStore", hearing.memory).tries < 5:
            await asyncio.sleep(0.01)
    assert hearing.log.text.count("no space left") == 1
    assert [row.node for row in kept(hearing.memory)] == ["web01.example.com"]


class Slow(MemoryInventory):
    """An inventory that is read when a test lets it be; counts how often."""

    def __init__(self, entries: list[InventoryEntry], *, current: float) -> None:
        super().__init__(entries, current=current)
        self.go = threading.Event()
        self.looks = self.questions = 0

    def check(self) -> None:
        self.questions += 1

    def entries(self) -> Iterator[InventoryEntry]:
        self.looks += 1
        self.go.wait(PATIENCE)
        return super().entries()


@pytest.fixture
def slow(tmp_path: Path) -> tuple[Slow, Inventory]:
    site = Site(tmp_path)
    asks = (CatalogQuery(text='servers_with_role("web")', digest="x"),)
    entries = [entry("lb", at=0.0, queries=asks), entry("web", at=0.0, roles=("web",))]
    view = Slow(entries, current=site.now())
    return view, Inventory(view, site.ask)


async def test_requests_during_a_search_share_its_result(slow: tuple[Slow, Inventory]) -> None:
    view, inventory = slow
    with pytest.raises(UnavailableError, match="the search for links is still running"):
        await inventory.links(patience=0.01)
    waiting = [asyncio.create_task(inventory.links()) for _ in range(3)]
    await asyncio.sleep(0)
    view.go.set()
    first, *others = await asyncio.gather(*waiting)
    assert [link.starts for link in first.links] == [{"web"}]
    assert all(links is first for links in others)
    assert await inventory.links(patience=0.01) is first
    assert view.looks == 1


async def test_a_look_that_failed_is_tried_again(slow: tuple[Slow, Inventory]) -> None:
    view, inventory = slow
    view.go.set()
    current, view.current = view.current, None
    for _ in range(2):
        with pytest.raises(UnavailableError, match="cannot answer the query"):
            await inventory.links()
    view.current = current
    assert (await inventory.links()).links


async def test_a_query_is_evaluated_once_until_a_change(slow: tuple[Slow, Inventory]) -> None:
    view, inventory = slow
    view.go.set()
    assert await inventory.names("") is None
    for _ in range(2):
        assert await inventory.names("role=web") == frozenset({"web"})
    asked = view.questions
    assert asked
    assert await inventory.names("role=lb") == frozenset()
    assert view.questions > asked
