"""Leases that the keeper renews, releases, fences and writes down for the next agent."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError, StateError, UnavailableError
from localpuppet.base.machine.ports import ProcessId
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus.layout import LEASES
from localpuppet.fleet.leases.keeper import (
    GIVE_UP_AT,
    LOCK_TTL,
    LOOK_AGAIN,
    RENEW_AT,
    Keeper,
    LeaseBook,
    LeaseRecord,
    LockUser,
)
from localpuppet.fleet.leases.lease import Leases, Use
from tests.doubles.agent_ports import FakeBook
from tests.doubles.memory_store import FirstStore, MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock, FakeLog
from tests.fleet.make import there
from tests.rigs.engines import SqliteEngine, age
from tests.rigs.following import Follower

RUN = LockUser(run="20261120T140000.000000Z-abcd")
OTHER_RUN = LockUser(run="20261120T150000.000000Z-abcd")
PROCESS = LockUser(process=ProcessId(pid=7, boot_id="b", started=1))


class FullBook(FakeBook):
    def note(self, noted: LeaseRecord) -> None:
        raise StateError("the disk is full", where="leases.sqlite")


class Rig:
    def __init__(self, book: FakeBook | None = None) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.log = FakeLog()
        self.lost: list[LockUser] = []
        self.over: list[LockUser] = []
        self.connected = True
        self.slow = False
        self.book = book or FakeBook()
        self.keeper = self.start("1")
        self.other = self.leases_of("b.example.com", "1")

    def leases_of(self, holder: str, session: str) -> Leases:
        kv = (SlowToAnswer if self.slow else MemoryKeyValue)(self.store)
        return Leases(kv, self.clock, holder=holder, session=session, stores=FirstStore())

    def start(self, session: str) -> Keeper:
        """Start an agent; the one before has ended."""
        self.keeper = Keeper(
            partial(self.leases, session),
            self.clock,
            self.log,
            book=self.book,
            relies=lambda user: user not in self.over,
            lost=self.lost.append,
        )
        self.keeper.resume()
        return self.keeper

    async def leases(self, session: str) -> Leases:
        if not self.connected:
            raise UnavailableError("there is no connection", where="bus")
        return self.leases_of("a.example.com", session)

    async def rob(self, name: str) -> None:
        self.store.kept.pop(f"/localpuppet/leases/{name}")
        assert await self.other.take(name, ttl=1000, use=Use.LEADER) is not None

    async def is_free(self, name: str) -> bool:
        return await self.other.holder(name) is None


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_lock_is_renewed_in_time_and_not_before(rig: Rig) -> None:
    revision = await rig.keeper.lock("db", wait=0, user=RUN)
    rig.clock.advance(LOCK_TTL * RENEW_AT - 1)
    await rig.keeper.step()
    assert rig.store.revision == revision
    for _ in range(10):
        rig.clock.advance(LOCK_TTL * RENEW_AT + 1)
        await rig.keeper.step()
        assert await rig.other.take("db", ttl=1) is None
    assert await rig.keeper.unlock("db", user=RUN)
    assert await rig.other.take("db", ttl=1) is not None
    assert rig.book.entries() == []


async def test_a_lock_is_had_once(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    with pytest.raises(InvalidInputError, match=r"already \(run .* relies on it"):
        await rig.keeper.lock("db", wait=0, user=RUN)
    await rig.other.take("theirs", ttl=1000)
    with pytest.raises(BusyError, match=r"b\.example\.com has it"):
        await rig.keeper.lock("theirs", wait=0, user=RUN)


async def test_a_lost_lock_ends_its_run(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    await rig.rob("db")
    rig.clock.advance(LOCK_TTL * RENEW_AT)
    await rig.keeper.step()
    assert rig.lost == [RUN]
    assert "lost the lease db: another node has it" in rig.log.text
    assert await rig.other.holder("db") == "b.example.com"
    await rig.keeper.step()
    assert rig.lost == [RUN], "once"
    assert rig.book.entries() == []


async def test_in_an_outage_a_lock_is_given_up_before_another_could_have_it(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    rig.connected = False
    rig.clock.advance(LOCK_TTL * GIVE_UP_AT - 1)
    await rig.keeper.step()
    assert rig.lost == []
    rig.clock.advance(1)
    await rig.keeper.step()
    assert rig.lost == [RUN]
    assert rig.store.get("/localpuppet/leases/db") is not None, "theirs only later"


async def test_a_short_outage_loses_no_lock(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    rig.store.away = True
    rig.clock.advance(LOCK_TTL * 0.8)
    await rig.keeper.step()
    rig.store.away = False
    await rig.keeper.step()
    rig.clock.advance(LOCK_TTL * 0.8)
    assert await rig.other.take("db", ttl=1) is None
    assert rig.lost == []


async def test_a_lost_reply_to_a_renewal_loses_no_lock(rig: Rig) -> None:
    """The store has the renewal, under a revision that the keeper did not receive."""
    await rig.keeper.lock("db", wait=0, user=RUN)
    rig.clock.advance(LOCK_TTL * RENEW_AT)
    entry = there(rig.store.get("/localpuppet/leases/db"))
    rig.store.away = True
    await rig.keeper.step()
    rig.store.away = False
    rig.store.write(entry.key, entry.value, LOCK_TTL)
    await rig.keeper.step()
    assert rig.lost == []
    assert await rig.keeper.unlock("db", user=RUN)
    assert await rig.is_free("db")


@pytest.mark.parametrize("user", [RUN, PROCESS])
async def test_the_lock_of_a_user_that_has_ended_is_released(rig: Rig, user: LockUser) -> None:
    await rig.keeper.lock("one", wait=0, user=user)
    await rig.keeper.lock("two", wait=0, user=OTHER_RUN)
    rig.over.append(user)
    await rig.keeper.step()
    assert await rig.other.take("one", ttl=1) is not None
    assert await rig.other.take("two", ttl=1) is None
    assert [noted.name for noted in rig.book.entries()] == ["two"]


async def test_a_failed_release_is_repeated_until_the_lease_has_expired(rig: Rig) -> None:
    await rig.keeper.lock("one", wait=0, user=RUN)
    await rig.keeper.lock("two", wait=0, user=OTHER_RUN)
    rig.over += [RUN, OTHER_RUN]
    rig.connected = False
    await rig.keeper.step()
    with pytest.raises(UnavailableError):
        await rig.keeper.unlock("two", user=OTHER_RUN)
    rig.connected = True
    await rig.keeper.step()
    assert await rig.is_free("one")
    assert await rig.is_free("two")

    rig.over.clear()
    await rig.keeper.lock("one", wait=0, user=RUN)
    rig.over.append(RUN)
    rig.connected = False
    await rig.keeper.step()
    rig.clock.advance(LOCK_TTL)
    await rig.keeper.step()
    assert "the lock one expires by itself" in rig.log.text
    assert rig.lost == []


async def test_the_next_run_takes_the_lock_of_an_ended_run_at_once(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    rig.over.append(RUN)
    assert await rig.keeper.lock("db", wait=0, user=OTHER_RUN) > 0
    await rig.keeper.step()
    assert await rig.other.holder("db") == "a.example.com"


async def test_unlock_returns_whether_the_lock_was_held_to_the_end(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    await rig.rob("db")
    assert not await rig.keeper.unlock("db", user=RUN)
    assert await rig.keeper.unlock("never", user=RUN)
    assert await rig.other.holder("db") == "b.example.com"


async def test_only_the_user_of_a_lock_can_release_it(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    await rig.keeper.leader("lead", ttl=30, take=True)
    for name in ("db", "lead"):
        assert await rig.keeper.unlock(name, user=PROCESS), "that process never had it"
        assert await rig.other.take(name, ttl=1) is None


async def test_a_lock_is_unlocked_while_it_is_renewed(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    rig.clock.advance(LOCK_TTL * RENEW_AT)
    renewing = asyncio.create_task(rig.keeper.step())
    await asyncio.sleep(0)
    assert await rig.keeper.unlock("db", user=RUN)
    await renewing
    assert await rig.is_free("db")


class SlowToAnswer(MemoryKeyValue):
    """Others come first, between the write of the store and its reply."""

    async def remove_if_revision(self, key: str, revision: int) -> bool:
        done = await super().remove_if_revision(key, revision)
        for _ in range(50):
            await asyncio.sleep(0)
        return done


async def test_runs_and_processes_of_this_node_get_a_lock_one_after_the_other(rig: Rig) -> None:
    held = there(await rig.other.take("db", ttl=1000))
    askers = {PROCESS, RUN}
    waiting = {
        asyncio.create_task(rig.keeper.lock("db", wait=100, user=user)): user for user in askers
    }
    while len(rig.store.watchers) < 2:
        await asyncio.sleep(0)
    rig.slow = True
    await rig.other.give_back(held)
    (first,), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert await rig.keeper.unlock("db", user=waiting.pop(first))
    (second,) = waiting
    await second
    rig.clock.advance(LOCK_TTL * RENEW_AT)
    await rig.keeper.step()
    rig.clock.advance(LOCK_TTL * RENEW_AT * 2)
    assert await rig.other.take("db", ttl=1) is None, "it is renewed"
    assert [noted.user for noted in rig.book.entries()] == [waiting[second]]
    assert await rig.keeper.unlock("db", user=waiting[second])
    assert await rig.is_free("db")


async def test_a_lock_that_cannot_be_recorded_is_refused() -> None:
    rig = Rig(FullBook())
    with pytest.raises(StateError, match="the disk is full"):
        await rig.keeper.lock("db", wait=0, user=RUN)
    await rig.keeper.step()
    assert await rig.is_free("db")
    assert await rig.keeper.leader("lead", ttl=30, take=True) == "a.example.com"
    assert "cannot be recorded for the next agent" in rig.log.text


async def test_a_leader_leads_only_while_its_lease_is_good(rig: Rig) -> None:
    assert await rig.keeper.leader("db", ttl=30, take=False) is None
    assert await rig.keeper.leader("db", ttl=30, take=True) == "a.example.com"
    rig.connected = False
    assert await rig.keeper.leader("db", ttl=30, take=True) == "a.example.com"  # by its own clock
    rig.clock.advance(30 * GIVE_UP_AT)
    with pytest.raises(UnavailableError):
        await rig.keeper.leader("db", ttl=30, take=True)
    await rig.keeper.step()
    assert rig.lost == [], "no run relied on it"
    rig.connected = True
    await rig.rob("db")
    assert await rig.keeper.leader("db", ttl=30, take=True) == "b.example.com"


@pytest.mark.parametrize("use", [Use.COMMAND, Use.LOCK])
async def test_leader_does_not_take_the_lease_of_a_command_on_this_node(rig: Rig, use: Use) -> None:
    command = rig.leases_of("a.example.com", "command")
    held = there(await command.take("db", ttl=30, use=use))
    assert await rig.keeper.leader("db", ttl=30, take=True) is None, "no node leads"
    assert await command.renew(held) is not None, "it still has it"


async def test_the_next_agent_resumes_the_leases_of_the_agent_before(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    await rig.keeper.leader("lead", ttl=30, take=True)
    rig.clock.advance(10)
    rig.connected = False
    rig.start("2")
    await rig.keeper.step()
    assert await rig.keeper.leader("lead", ttl=30, take=False) == "a.example.com"  # as above
    rig.connected = True
    await rig.keeper.step()
    assert "resumed the lock db for run 2026" in rig.log.text
    rig.clock.advance(29)
    await rig.keeper.step()
    rig.clock.advance(29)
    for name in ("db", "lead"):
        assert await rig.other.take(name, ttl=1) is None
    rig.start("3")
    assert await rig.keeper.unlock("db", user=RUN), "before it was looked at"
    assert await rig.is_free("db")
    assert rig.lost == []


@pytest.mark.parametrize("robbed", [True, False])
async def test_the_next_agent_ends_the_run_whose_lock_is_lost(rig: Rig, robbed: bool) -> None:
    """Another node has the lock, or the lock is free and another node may have had it."""
    await rig.keeper.lock("db", wait=0, user=RUN)
    rig.clock.advance(LOCK_TTL)
    rig.store.get("/localpuppet/leases/db")
    if robbed:
        assert await rig.other.take("db", ttl=1000) is not None
    rig.start("2")
    await rig.keeper.step()
    assert rig.lost == [RUN]
    assert await rig.other.holder("db") == ("b.example.com" if robbed else None)
    rig.start("3")
    await rig.keeper.step()
    assert rig.lost == [RUN], "once"


async def test_the_next_agent_has_a_moment_to_reach_the_bus(rig: Rig) -> None:
    await rig.keeper.lock("db", wait=0, user=RUN)
    rig.clock.advance(LOCK_TTL * GIVE_UP_AT)
    rig.connected = False
    rig.start("2")
    await rig.keeper.step()
    assert rig.lost == []
    rig.clock.advance(LOOK_AGAIN)
    await rig.keeper.step()
    assert rig.lost == [RUN]


async def test_an_agent_that_ends_releases_leases_without_a_user(rig: Rig) -> None:
    await rig.keeper.lock("one", wait=0, user=RUN)
    await rig.keeper.leader("two", ttl=30, take=True)
    await rig.keeper.lock("three", wait=0, user=PROCESS)
    rig.over.append(RUN)
    stop = asyncio.Event()
    stop.set()
    await rig.keeper.keep(stop)
    for name in ("one", "two"):
        assert await rig.other.take(name, ttl=1) is not None
    assert await rig.other.take("three", ttl=1) is None
    assert "left the lock three to the next agent: process 7 relies on it" in rig.log.text
    assert [noted.name for noted in rig.book.entries()] == ["three"]


async def test_a_lock_is_written_again_at_once_if_the_bus_loses_it(rig: Rig) -> None:
    rig.store.born = 1.0
    await rig.keeper.lock("db", wait=0, user=RUN)
    rig.store = MemoryStore(now=rig.clock.monotonic, born=2.0)
    rig.connected = False
    await rig.keeper.step()
    rig.connected = True
    await rig.keeper.step()
    assert [*rig.store.kept] == [f"{LEASES}db"]
    rig.clock.advance(LOCK_TTL - 1)
    await rig.keeper.step()
    assert rig.lost == []
    assert await rig.keeper.unlock("db", user=RUN)
    assert not rig.store.kept


def lost(user: LockUser) -> None:
    raise AssertionError(f"the lock of {user} was lost")


async def test_a_lease_that_is_taken_while_the_keeper_sleeps_is_renewed(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path)
    age(engine.path)
    async with engine.open() as kv:
        clock = SystemClock()

        async def leases() -> Leases:
            return Leases(kv, clock, holder="a", session="1", stores=FirstStore())

        keeper = Keeper(leases, clock, FakeLog(), book=FakeBook(), relies=lambda _: True, lost=lost)
        stop = asyncio.Event()
        keeping = asyncio.create_task(keeper.keep(stop))
        await asyncio.sleep(0)  # it has looked, and sleeps
        follower = Follower(kv, LEASES)
        await follower.listed()
        for ttl in (3, 15, 75):  # a busy keeper may lose a short lease
            writes = len(follower.puts)
            while await keeper.leader("db", ttl=ttl, take=True) != "a":
                await asyncio.sleep(0.05)  # until it has given up the one before
            while len(follower.puts) < writes + 3 and await kv.get(f"{LEASES}db"):
                await asyncio.sleep(0.05)
            if len(follower.puts) >= writes + 3:  # taken, and renewed twice
                break
        else:
            raise AssertionError("no lease was renewed twice")
        await follower.stop()
        stop.set()
        await keeping
        assert await kv.get(f"{LEASES}db") is None


BOOTED = ProcessId(pid=7, boot_id="this", started=5)
NOTED = [
    LeaseRecord(
        name="db", value=b'{"a": 1}', ttl=60.0, until=7.5, user=LockUser(run="r", process=BOOTED)
    ),
    LeaseRecord(name="lead", value=b"\xff", ttl=30.0, until=8.0, user=None),
    LeaseRecord(name="unused", value=b"", ttl=30.0, until=8.0, user=LockUser()),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent" / "leases.sqlite"


def test_recorded_leases_survive_a_restart(path: Path) -> None:
    book = LeaseBook(path, boot_id="this")
    assert book.entries() == []
    assert not path.exists(), "the first record creates the file"
    for noted in NOTED:
        book.note(noted)
        book.note(noted)
    book.close()
    again = LeaseBook(path, boot_id="this")
    assert again.entries() == NOTED
    again.strike("lead")
    again.strike("never")
    assert again.entries() == [NOTED[0], NOTED[2]]
    again.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_times_and_processes_of_another_boot_do_not_count(path: Path) -> None:
    book = LeaseBook(path, boot_id="this")
    book.note(NOTED[0])
    book.close()
    later = LeaseBook(path, boot_id="later")
    (found,) = later.entries()
    later.close()
    assert found.until == 0
    assert found.user == NOTED[0].user, "its boot id shows that the process has ended"


def test_a_damaged_book_is_an_error(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"no database" * 1000)
    book = LeaseBook(path, boot_id="this")
    with pytest.raises(StateError, match=r"leases\.sqlite: is damaged.*move it away"):
        book.entries()


def test_askers() -> None:
    assert str(LockUser(run="r", process=BOOTED)) == "run r"
    assert str(LockUser(process=BOOTED)) == "process 7"
    assert LockUser(run="r").is_same(LockUser(run="r", process=BOOTED))
    assert not LockUser(run="r", process=BOOTED).is_same(LockUser(process=BOOTED))
    assert LockUser(process=BOOTED).is_same(LockUser(process=BOOTED))
