"""What a node records of requests, also of a flood, and publishes of its history: changed days."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.bus_limits import MAX_RUN_TEXT
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.history import node_history
from localpuppet.fleet.history.history_records import (
    AUDIT,
    DAY,
    RUNS,
    AuditDecision,
    AuditRecord,
    history_key,
    parse_day,
)
from localpuppet.fleet.trust.signing import MessageKind
from tests.doubles.identities import person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock, FakeLog
from tests.doubles.simulated_loop import run_simulated
from tests.fleet.make import a_decision, a_summary

WEB = person("web01.example.com")
NODE = NodeName(WEB.name)


class _Site:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.clock, self.log = FakeClock(), FakeLog()
        self.now = self.clock.now().timestamp()
        self.today = int(self.now // DAY)
        self.store = MemoryStore()
        self.runs, self.audit = node_history.DayLog(state, RUNS), node_history.DayLog(state, AUDIT)
        self.problem: Exception | None = None
        self.calls = 0

    def publisher(self) -> node_history.HistoryPublisher:
        return node_history.HistoryPublisher(
            NODE,
            (self.runs, self.audit),
            node_history.PublishedDays(self.state),
            signer=WEB.signer,
            store=self._connected,
            clock=self.clock,
            log=self.log,
        )

    def is_published(self) -> bool:
        logs: tuple[node_history.DayLog[Any], ...] = (self.runs, self.audit)
        return node_history.is_published(
            NODE, logs, node_history.PublishedDays(self.state), self.clock
        )

    async def _connected(self) -> KeyValue:
        self.calls += 1
        if self.problem is not None:
            raise self.problem
        return MemoryKeyValue(self.store)


@pytest.fixture
def site(tmp_path: Path) -> _Site:
    return _Site(tmp_path)


async def test_a_day_is_written_only_when_it_changed(site: _Site, tmp_path: Path) -> None:
    publisher = site.publisher()
    site.runs.append(NODE, a_summary(site.now))
    assert not site.is_published()
    await publisher.step()
    await publisher.step()
    assert (site.is_published(), site.store.revision) == (True, 1)
    await site.publisher().step()  # the agent was started again
    assert site.store.revision == 1
    site.runs.append(NODE, a_summary(site.now + 1))
    await publisher.step()
    site.audit.append(NODE, a_decision(site.now))
    await publisher.step()
    assert (site.is_published(), site.store.revision) == (True, 3)
    found = await MemoryKeyValue(site.store).get(history_key(NODE, RUNS.kind, site.today))
    assert found is not None
    signed = verifier(tmp_path, WEB).verify(found.value, MessageKind.RUN_HISTORY)
    assert len(parse_day(signed.payload, RUNS).records) == 2


async def test_only_the_last_eight_days_are_on_the_bus(site: _Site) -> None:
    for day in range(-20, 3):
        site.audit.append(NODE, a_decision(site.now + day * DAY))
    await site.publisher().step()
    listing = await MemoryKeyValue(site.store).list("/localpuppet/history/")
    assert len(listing.entries) == site.store.revision == 8
    assert site.is_published()


async def test_days_are_written_again_if_the_record_of_them_is_damaged(site: _Site) -> None:
    site.runs.append(NODE, a_summary(site.now))
    await site.publisher().step()
    (site.state / "history" / "published.json").write_text("{")
    assert not site.is_published()
    await site.publisher().step()
    assert (site.is_published(), site.store.revision) == (True, 2)


async def test_days_are_written_again_to_a_bus_that_lost_its_data(site: _Site) -> None:
    site.runs.append(NODE, a_summary(site.now))
    for publisher in (site.publisher(), None):  # a running agent, and one that was down meanwhile
        publisher = publisher or site.publisher()
        await publisher.step()
        site.store = MemoryStore(born=site.store.born + 1)
        await publisher.step()
        await publisher.step()
        assert (site.is_published(), site.store.revision) == (True, 1)


async def test_after_an_outage_the_next_step_publishes(site: _Site) -> None:
    publisher = site.publisher()
    site.runs.append(NODE, a_summary(site.now))
    site.problem = UnavailableError("is unreachable", where="bus")
    await publisher.step()
    site.problem = None
    await publisher.step()
    assert (site.store.revision, site.log.lines) == (1, [])


def test_a_node_without_the_right_to_write_asks_seldom_and_logs_it_once(site: _Site) -> None:
    async def steps() -> None:
        publisher = site.publisher()
        site.runs.append(NODE, a_summary(site.now))
        site.problem = RefusedError("denied", where="bus")
        for _ in range(100):
            await publisher.step()
            await asyncio.sleep(node_history.RETRY / 50)

    run_simulated(steps())
    assert 2 <= site.calls <= 5
    assert [level for level, _ in site.log.lines] == ["warning"]


class Book:
    """An auditor and the records that are kept: the last version of each."""

    def __init__(self) -> None:
        self.clock, self.log = FakeClock(), FakeLog()
        self.kept: dict[str, AuditRecord] = {}
        self.writes = 0
        self.full = False
        self.auditor = node_history.Auditor(self._append, self.clock, self.log)

    def _append(self, record: AuditRecord) -> None:
        if self.full:
            raise StateError("no space left on device")
        self.writes += 1
        self.kept[record.identity] = record

    def ask(self, caller: str, action: str, subject: str = "", **more: Any) -> None:
        self.clock.advance(0.001)
        more = {"reason": "", "repeats": False, **more}
        self.auditor.record(caller, action, subject, request="", **more)

    def shown(self) -> list[str]:
        return [
            f"{one.caller} {one.action} {one.decision} {one.times}" for one in self.kept.values()
        ]


@pytest.fixture
def book() -> Book:
    return Book()


def test_the_order_of_requests_stays_visible_and_repeats_are_counted(book: Book) -> None:
    for action in ("disable", "enable", "disable", "disable"):
        book.ask("alice", action)
    book.ask("bob", "runonce", reason="denied")
    mine = ["alice disable accepted 1", "alice enable accepted 1", "alice disable accepted 2"]
    assert book.shown() == [*mine, "bob runonce refused 1"]
    for _ in range(3):
        book.ask("alice", "runonce", "step 1", repeats=True)
        book.ask("alice", "disable", "r", repeats=True)
    assert book.shown()[-2:] == ["alice runonce accepted 2", "alice disable accepted 2"]


def test_a_flood_of_refusals_is_few_records_and_few_writes(book: Book) -> None:
    book.ask("alice", "disable")
    for number in range(4096):
        book.ask("eve", "runonce", f"tag {number % 500}", reason="denied by policy")
        book.ask("mallory", "enable", reason="denied by policy")
    mine = [one for one in book.kept.values() if one.caller == "eve"]
    assert len(mine) == node_history.MAX_OF_CALLER[AuditDecision.REFUSED] + 1
    assert (mine[-1].subject, mine[-1].times) == (node_history.FURTHER, 2048)
    assert "mallory enable refused 4096" in book.shown()
    assert "alice disable accepted 1" in book.shown()
    assert book.writes < 150
    book.clock.advance(DAY)
    book.ask("eve", "runonce", "tag 1", reason="denied by policy")
    assert book.shown()[-1] == "eve runonce refused 1"


def test_many_requests_callers_and_long_texts_are_bounded(book: Book) -> None:
    for number in range(500):
        book.ask("ci", "deploy", f"apply r{number}")
    assert len(book.kept) == node_history.MAX_OF_CALLER[AuditDecision.ACCEPTED] + 1
    book.kept.clear()
    for number in range(node_history.MAX_CALLERS + 10):
        book.ask(f"c{number}", "runonce", "\u202e\n" * 1000, reason="x" * 1000)
    assert len(book.auditor._callers) == node_history.MAX_CALLERS
    record = next(iter(book.kept.values()))
    assert (len(record.subject), len(record.reason)) == (MAX_RUN_TEXT, MAX_RUN_TEXT)


def test_a_disk_that_is_full_stops_no_request(book: Book) -> None:
    book.full = True
    book.ask("alice", "disable")
    assert "cannot record a request: no space left" in book.log.text
