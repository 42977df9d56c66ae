"""What a node publishes of its history: only changed days, and no records of others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.history.history_records import AUDIT, DAY, RUNS, history_key, parse_day
from localpuppet.fleet.history.node_history import (
    RETRY,
    DayLog,
    HistoryPublisher,
    PublishedDays,
    is_published,
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
        self.runs, self.audit = DayLog(state, RUNS), DayLog(state, AUDIT)
        self.problem: Exception | None = None
        self.calls = 0

    def publisher(self) -> HistoryPublisher:
        return HistoryPublisher(
            NODE,
            (self.runs, self.audit),
            PublishedDays(self.state),
            signer=WEB.signer,
            store=self._connected,
            clock=self.clock,
            log=self.log,
        )

    def is_published(self) -> bool:
        logs: tuple[DayLog[Any], ...] = (self.runs, self.audit)
        return is_published(NODE, logs, PublishedDays(self.state), self.clock)

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
            await asyncio.sleep(RETRY / 50)

    run_simulated(steps())
    assert 2 <= site.calls <= 5
    assert [level for level, _ in site.log.lines] == ["warning"]
