"""The agent's side of the bus, over a store in memory: outages, news, farewells."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.fleet.agent.agent import CONTENDED
from localpuppet.fleet.agent.bus_session import BACKLOG, AskedQueue, BusSession, LocalRunSide
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import Change, KeyValue, KeyValueEntry, KeyWrite, entries
from localpuppet.fleet.inventory import presence
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.simulated_loop import run_simulated
from tests.fleet.agent.test_agent import B, Rig

PREFIX = "/t/events"


class OddKeyValue(MemoryKeyValue):
    """A client whose library does what it should not."""

    ends = False
    cancels = False

    async def watch(self, prefix: str, **how: Any) -> AsyncGenerator[Change, None]:
        async for change in super().watch(prefix, **how):
            if self.cancels:
                raise asyncio.CancelledError
            yield change
            if self.ends:
                return


class Site:
    def __init__(self, directory: Path) -> None:
        self.rig = Rig(directory)
        self.store = MemoryStore()
        self.clients: list[OddKeyValue] = []
        self.described = 0
        self.stop = asyncio.Event()
        self.odd = ""
        self.caller = "alice"
        self.session = self.connected_by(self.connect)

    def connected_by(self, connect: Callable[[], Awaitable[KeyValue]]) -> BusSession:
        side = LocalRunSide(self.rig.agent, serve=self.serve, describe=self.describe)
        return BusSession(side, connect=connect, log=self.rig.log, keyprefix=PREFIX)

    async def connect(self) -> KeyValue:
        if self.store.away:
            raise UnavailableError("cannot be reached", where="bus memory")
        self.clients.append(OddKeyValue(self.store))
        if self.odd:
            setattr(self.clients[-1], self.odd, True)
        return self.clients[-1]

    def describe(self) -> bytes:
        self.described += 1
        return f"entry {self.described}".encode()

    async def serve(self, token: bytes) -> tuple[str, str, bytes] | None:
        return None if token == b"rubbish" else (self.caller, "id", b"re: " + token)

    def put(self, token: bytes, sender: str = "a.example.com") -> None:
        self.store.write(f"{PREFIX}/hosts/{B}/{sender}", token, None)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(self.session.run(self.stop))
        try:
            yield
            self.stop.set()
            await task
        finally:
            task.cancel()
            self.rig.inbox.close()

    async def until(self, text: str, count: int = 1) -> None:
        while self.rig.log.text.count(text) < count:
            await asyncio.sleep(0.001)

    async def present(self) -> bytes:
        while (entry := self.store.get(f"{layout.PRESENCE}{B}")) is None:
            await asyncio.sleep(0.001)
        return entry.value

    def away(self, away: bool) -> None:
        self.store.away = away
        self.store.wake()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_an_outage_costs_nothing_but_time(site: Site) -> None:
    site.store.warnings = ("the server is old",)
    site.put(site.rig.token(1))
    async with site.running():
        await site.until("accepted")
        for times in range(2, 5):
            site.away(True)
            await site.until("the bus is unreachable, periodic runs continue", times - 1)
            with pytest.raises(UnavailableError):
                await site.session.store()
            site.put(site.rig.token(times))  # another node still reaches the bus
            site.away(False)
            await site.until("the bus is reachable again", times - 1)
            await site.until("accepted", times)
    assert site.rig.log.text.count("the server is old") == 1, "logged once"
    assert all(client.closed for client in site.clients)


def test_a_full_bus_keeps_its_connection_and_is_logged_once(site: Site) -> None:
    """A new connection would not make room; it delivers each request again, after an outage too."""
    served: list[bytes] = []

    async def serve(token: bytes) -> tuple[str, str, bytes]:
        served.append(token)
        return site.caller, "id", b"re: " + token

    site.serve = serve  # type: ignore[method-assign]
    site.session = site.connected_by(site.connect)

    async def work() -> None:
        async with site.running():
            await site.present()
            site.store.full = True
            site.store.write(f"{layout.requests_for(B)}alice/id", b"ask", None)
            site.rig.agent.recheck()
            described = site.described
            await asyncio.sleep(600)
            assert 60 <= site.described - described < 150
            site.away(True)
            await site.until("the bus is unreachable")
            site.away(False)
            await asyncio.sleep(60)
            site.store.full = False
            await site.until("the bus accepts values again")

    run_simulated(work())
    assert (len(site.clients), served) == (2, [b"ask"])
    assert site.rig.log.text.count("the bus has no room") == 2


async def test_two_agents_of_one_name_notice_each_other(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also while the state does not change; an entry that expired is no other agent."""
    first, second = site, Site(tmp_path_factory.mktemp("copy"))
    second.store = first.store
    async with first.running():
        await first.present()
        first.store.remove(f"{layout.PRESENCE}{B}")
        first.rig.agent.recheck()
        await first.present()
        assert first.rig.agent.other_agent_since is None
        async with second.running():
            for site in (first, second, first):
                before = site.described
                site.rig.agent.recheck()
                while site.described == before:
                    await asyncio.sleep(0.001)
            for site in (first, second):
                await site.until("another agent publishes as this node")
                assert site.rig.agent.other_agent_since is not None
            first.rig.clock.advance(CONTENDED)
            assert first.rig.agent.other_agent_since is None


async def test_settings_that_were_good_once_are_an_outage_later(site: Site) -> None:
    """A certificate and its key are replaced one after the other."""
    tries: list[int] = []
    connect = site.connect

    async def connect_with_files() -> KeyValue:
        tries.append(len(tries))
        if 0 < tries[-1] < 4:
            raise InvalidInputError("cannot be used for TLS", where="node.pem")
        return await connect()

    site.session = site.connected_by(connect_with_files)
    async with site.running():
        await site.present()
        site.away(True)
        await site.until("the bus is unreachable")
        site.away(False)
        await site.until("the bus is reachable again")
        assert len(tries) == 5


async def test_settings_that_were_never_good_end_it(site: Site) -> None:
    async def refused() -> KeyValue:
        raise InvalidInputError("cannot be used for TLS", where="node.pem")

    with pytest.raises(BaseExceptionGroup) as caught:
        await site.connected_by(refused).run(site.stop)
    assert caught.group_contains(InvalidInputError)
    site.rig.inbox.close()


def test_a_session_reconnects_with_growing_pauses(site: Site) -> None:
    site.away(True)
    tries: list[float] = []
    connect = site.connect

    async def counted() -> KeyValue:
        tries.append(asyncio.get_running_loop().time())
        return await connect()

    async def work() -> None:
        task = asyncio.create_task(site.connected_by(counted).run(site.stop))
        while len(tries) < 4:
            await asyncio.sleep(0.01)
        site.stop.set()
        await task

    run_simulated(work())
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[0] < pauses[1] < pauses[2]
    assert site.rig.log.text.count("the bus is unreachable") == 1, "logged once"


@pytest.mark.parametrize("odd", ["ends", "cancels"])
async def test_a_watch_that_ends_or_is_cancelled_is_an_outage(site: Site, odd: str) -> None:
    """If a library ends a watch without an error, the agent must still receive changes."""
    site.odd = odd
    async with site.running():
        await site.until("the bus is unreachable")
        site.odd = ""
        site.put(site.rig.token(1))
        await site.until("accepted")


async def test_time_outs_work_after_many_outages(site: Site) -> None:
    """A failed group of tasks must not mark the session's task as cancelled."""
    connect = site.connect

    async def slow() -> KeyValue:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(1 if site.store.away else 0)
        except TimeoutError as error:
            raise UnavailableError("no answer in time") from error
        return await connect()

    task = asyncio.create_task(site.connected_by(slow).run(site.stop))
    for times in range(1, 4):
        await site.until("the bus is reachable again", times - 1)
        while not site.store.watchers:
            await asyncio.sleep(0.001)
        site.away(True)
        await site.until("the bus is unreachable", times)
        await asyncio.sleep(0.01)  # a connection is tried, and times out
        site.away(False)
    await site.until("the bus is reachable again", 3)
    assert not task.done()
    site.stop.set()
    await task


async def test_requests_are_answered_and_rubbish_stops_nothing(site: Site) -> None:
    async with site.running():
        await site.present()
        site.store.write(f"{layout.requests_for(B)}alice/x", b"rubbish", None)
        site.caller = "x" * 500  # no key of a reply
        site.store.write(f"{layout.requests_for(B)}alice/z", b"question", None)
        await site.until("gets no reply")
        site.caller = "alice"
        site.store.write(f"{layout.requests_for(B)}alice/y", b"question", None)
        key = f"{layout.BASE}/replies/alice/{B}/id"
        while site.store.get(key) is None:
            await asyncio.sleep(0.001)
        entry = site.store.get(key)
        assert entry is not None
        assert entry.value == b"re: question"


async def test_a_session_publishes_changes_at_once_and_a_last_status_at_its_end(site: Site) -> None:
    async with site.running():
        assert await site.present() == b"entry 1"
        site.rig.agent.subscribe()
        site.rig.agent._tell()
        while await site.present() != b"entry 2":
            await asyncio.sleep(0.001)
    assert await site.present() == b"entry 3"
    kept = site.store.kept[f"{layout.PRESENCE}{B}"]
    assert kept.until is not None
    assert kept.until - site.store.now() <= presence.FAREWELL_TTL


async def test_a_full_disk_ends_it(site: Site) -> None:
    site.rig.inbox.close()
    directory = site.rig.directory
    (directory / "inbox.sqlite").write_bytes(b"no database" * 1000)
    for extra in directory.glob("inbox.sqlite-*"):
        extra.unlink()
    site.put(site.rig.token(1))
    with pytest.raises(BaseExceptionGroup) as caught:
        await site.session.run(site.stop)
    assert caught.group_contains(StateError)


@pytest.mark.parametrize("turns", range(12))
async def test_it_ends_also_when_there_is_news_at_that_moment(site: Site, turns: int) -> None:
    async with site.running():
        await site.present()
        await asyncio.sleep(0.01)
        site.rig.agent.recheck()
        for _ in range(turns):
            await asyncio.sleep(0)
        site.stop.set()


async def test_a_caller_with_many_requests_keeps_no_other_waiting(site: Site) -> None:
    served: list[bytes] = []

    async def serve(token: bytes) -> None:
        served.append(token)
        await asyncio.sleep(0)

    site.serve = serve  # type: ignore[method-assign]
    site.session = site.connected_by(site.connect)
    for number in range(4 * BACKLOG):
        site.store.write(f"{layout.requests_for(B)}eve/{number:04}/x", b"%d" % number, None)
    for caller in ("zoe", "zoe.b"):
        site.store.write(f"{layout.requests_for(B)}{caller}/id", caller.encode(), None)
    async with site.running():
        while len(served) < BACKLOG:
            await asyncio.sleep(0.001)
    assert {b"zoe", b"zoe.b"} <= {*served[: BACKLOG // 4]}


async def test_a_queue_that_is_full_drops_the_newest_of_the_caller_with_the_most() -> None:
    queue = AskedQueue("/r/", 3)
    for key in ("/r/a/1", "/r/b/1", "/r/b/2", "/r/c/1", "/r/d/1"):
        await queue.put(KeyValueEntry(key=key, value=b"", revision=1))
    assert [(await queue.get()).key for _ in range(3)] == ["/r/a/1", "/r/b/1", "/r/c/1"]


async def test_of_many_triggers_of_a_sender_only_the_newest_is_checked(site: Site) -> None:
    """A store that reports each write must not cost more than one that has only the newest."""

    class Burst(MemoryKeyValue):
        async def watch(self, prefix: str, **how: Any) -> AsyncGenerator[Change, None]:
            async for change in super().watch(prefix, **how):
                for entry in entries(change) if prefix.startswith(PREFIX) else ():
                    for number in range(1, 9):
                        yield KeyWrite(entry=replace(entry, value=site.rig.token(number)))
                yield change

    async def connect() -> KeyValue:
        return Burst(site.store)

    site.session = site.connected_by(connect)
    site.put(site.rig.token(9))
    async with site.running():
        await site.until("accepted")
        await site.present()
    assert site.rig.log.text.count("accepted a trigger") == 1
