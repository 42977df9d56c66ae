"""A command under a lease: renewed, released, and ended before another node can take the lease."""

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import replace

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.fleet.bus.key_value import KeyValueEntry
from localpuppet.fleet.bus.layout import LEASES
from localpuppet.fleet.leases.lease import RETRY, HeldLease, LeasedCommand, Leases
from tests.doubles.memory_store import FirstStore, MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock

# So short that a third of it is over at once; the fake clock does not move meanwhile.
TTL = 0.03


class FakeGuarded:
    """A command that ends when the test says, or by a signal.

    Attributes:
        more: The variables in its environment; `None` before it was started.
        untils: Until when it might run, in the order of the calls.
        signals: Every signal that it got.
        allowed: Set whenever the command was allowed to continue.
    """

    def __init__(
        self, *, dies_of: tuple[int, ...] = (signal.SIGTERM,), problem: OSError | None = None
    ) -> None:
        self.more: Mapping[str, str] | None = None
        self.untils: list[float] = []
        self.signals: list[int] = []
        self.allowed = asyncio.Event()
        self._dies_of = dies_of
        self._problem = problem
        self._ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def start(self, *, until: float, more: Mapping[str, str]) -> None:
        if self._problem is not None:
            raise self._problem
        self.more = more
        self.untils.append(until)

    def good_until(self, until: float) -> None:
        self.untils.append(until)
        self.allowed.set()

    def signal(self, number: int) -> None:
        self.signals.append(number)
        if number in self._dies_of:
            self.exit(-number)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)
        self.exit(-signal.SIGKILL)

    async def wait(self) -> int | None:
        return await self._ended

    def exit(self, code: int | None) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


class Site:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.fails: list[str] = []
        self.notes: list[str] = []
        self.ours = self.leases("a.example.com")
        self.theirs = self.leases("b.example.com")

    def leases(self, holder: str, kv: MemoryKeyValue | None = None) -> Leases:
        kv = kv or MemoryKeyValue(self.store)
        return Leases(kv, self.clock, holder=holder, session="1", stores=FirstStore())

    async def held(self, ttl: float = TTL) -> HeldLease:
        held = await self.ours.take("db", ttl=ttl)
        assert held is not None
        return held

    async def lost(self) -> None:
        self.store.kept.clear()
        assert await self.theirs.take("db", ttl=600) is not None

    def watched(self) -> MemoryKeyValue:
        """Give the holder a store that a test replaces; the holder looks each second."""
        kv = MemoryKeyValue(self.store)
        self.ours = self.leases("a", kv)
        self.store.born = 1.0
        return kv

    def run(self, command: FakeGuarded, held: HeldLease) -> "asyncio.Task[int]":
        leased = LeasedCommand(
            self.ours,
            command,
            program="backup",
            clock=self.clock,
            fail=self.fails.append,
            note=self.notes.append,
        )
        return asyncio.create_task(leased.run(held))

    @property
    def entry(self) -> KeyValueEntry | None:
        return self.store.get(LEASES + "db")


@pytest.mark.parametrize(
    ("code", "returned"), [(0, 0), (3, 3), (-signal.SIGKILL, 137), (-signal.SIGTERM, 143)]
)
async def test_the_exit_code_is_returned_and_the_lease_released(code: int, returned: int) -> None:
    site, command = Site(), FakeGuarded()
    held = await site.held(600)
    run = site.run(command, held)
    command.exit(code)
    assert await run == returned
    assert command.more == {"LOCALPUPPET_LEASE_REVISION": str(held.revision)}
    assert command.untils == [held.until - RETRY], "before another node could have the lease"
    assert (site.entry, site.fails, site.notes, command.signals) == (None, [], [], [])


async def test_the_lease_is_released_if_the_command_cannot_run() -> None:
    site = Site()
    command = FakeGuarded(problem=FileNotFoundError(2, "No such file or directory"))
    with pytest.raises(InvalidInputError, match="backup: cannot be run: No such file"):
        await site.run(command, await site.held())
    assert site.entry is None


async def test_a_lease_is_renewed_while_the_command_runs_and_so_is_its_time() -> None:
    site, command = Site(), FakeGuarded()
    held = await site.held()
    run = site.run(command, held)
    for number in range(1, 4):
        await command.allowed.wait()
        command.allowed.clear()
        end = site.clock.monotonic() + TTL - RETRY
        assert command.untils[-1] == pytest.approx(end, rel=0, abs=1e-4)
        assert site.entry is not None
        assert site.entry.revision >= held.revision + number
        site.clock.advance(TTL / 2)
    command.exit(0)
    assert await run == 0
    assert (site.entry, site.fails, command.signals) == (None, [], [])
    assert command.untils == sorted(command.untils)
    assert len(set(command.untils)) == 3, "later each time that the clock had moved"


async def test_a_lease_that_is_anothers_ends_the_command_and_stays_the_others() -> None:
    site, command = Site(), FakeGuarded()
    run = site.run(command, replace(await site.held(), until=site.clock.monotonic() + 600))
    await site.lost()
    assert await run == 1
    assert command.signals == [signal.SIGTERM], "it has time to end by itself"
    assert site.fails == ["the lease db was lost: another node has it; ending the command"]
    assert site.entry is not None
    assert b"b.example.com" in site.entry.value


async def test_a_command_that_does_not_listen_is_killed_in_time() -> None:
    site, command = Site(), FakeGuarded(dies_of=())
    run = site.run(command, await site.held())  # its time is up when the loss is noticed
    await site.lost()
    assert await run == 1
    assert command.signals == [signal.SIGTERM, signal.SIGKILL]


async def test_an_outage_ends_the_command_when_the_lease_runs_out() -> None:
    site, command = Site(), FakeGuarded()
    run = site.run(command, await site.held())
    site.store.away = True
    site.clock.advance(TTL * 0.8)
    assert await run == 1
    assert command.signals[0] == signal.SIGTERM
    assert len(site.fails) == 1
    assert "cannot be reached" in site.fails[0]


async def test_a_short_outage_does_not_disturb_the_command() -> None:
    class AwayOnce(MemoryKeyValue):
        tries = 0

        async def set_if_revision(
            self, key: str, value: bytes, revision: int, *, ttl: float | None = None
        ) -> int | None:
            self.tries += 1
            if self.tries == 1:
                raise UnavailableError("cannot be reached", where="bus")
            return await super().set_if_revision(key, value, revision, ttl=ttl)

    site, command = Site(), FakeGuarded()
    kv = AwayOnce(site.store)
    site.ours = site.leases("a.example.com", kv)
    run = site.run(command, await site.held())
    await command.allowed.wait()
    assert (kv.tries, command.signals) == (2, [])
    command.exit(0)
    assert (await run, site.fails) == (0, [])


async def test_a_bus_that_does_not_answer_ends_the_command_when_its_time_runs_out() -> None:
    class Hanging(MemoryKeyValue):
        async def set_if_revision(
            self, key: str, value: bytes, revision: int, *, ttl: float | None = None
        ) -> int | None:
            site.clock.advance(TTL)
            await asyncio.get_running_loop().create_future()
            return None

    site, command = Site(), FakeGuarded()
    site.ours = site.leases("a.example.com", Hanging(site.store))
    assert await site.run(command, await site.held()) == 1
    assert command.signals[0] == signal.SIGTERM
    assert "the bus does not answer" in site.fails[0]


async def test_a_lease_that_was_lost_before_the_command_ended_makes_no_success_of_it() -> None:
    site, command = Site(), FakeGuarded()
    held = await site.held(600)
    await site.lost()
    command.exit(0)
    assert await site.run(command, held) == 1
    assert site.fails == ["the lease db was lost before the command ended"]
    assert site.entry is not None, "it is another's"


@pytest.mark.parametrize(("late", "code"), [(False, 3), (True, 1)])
async def test_a_lease_that_cannot_be_released_expires_by_itself(late: bool, code: int) -> None:
    site, command = Site(), FakeGuarded()
    held = await site.held(600)
    site.store.away = True
    site.clock.advance(601 if late else 0)
    command.exit(3)
    assert await site.run(command, held) == code
    assert ["expires by itself" in note for note in site.notes] == [True]
    assert len(site.fails) == int(late)


async def test_a_guard_that_was_killed_is_a_failure() -> None:
    site, command = Site(), FakeGuarded()
    command.exit(None)
    assert await site.run(command, await site.held(600)) == 1
    assert "the command's watching process was killed" in site.fails[0]
    assert site.entry is None


async def test_a_command_continues_if_the_bus_loses_its_lease() -> None:
    site, command = Site(), FakeGuarded()
    kv = site.watched()
    held = await site.held(600)
    run = site.run(command, held)
    kv.store = site.store = MemoryStore(now=site.clock.monotonic, born=2.0)
    await command.allowed.wait()  # long before a third of its time is over
    assert site.entry is not None
    assert site.entry.value == held.value
    command.exit(0)
    assert (await run, site.fails) == (0, [])
    assert site.entry is None


async def test_a_command_has_a_second_to_end_if_the_bus_gave_its_lost_lease_away() -> None:
    site, command = Site(), FakeGuarded(dies_of=())
    kv = site.watched()
    held = await site.held(600)
    store = MemoryStore(now=site.clock.monotonic, born=2.0)
    theirs = site.leases("b", MemoryKeyValue(store))
    assert await theirs.take("db", ttl=600) is not None
    run = site.run(command, held)
    kv.store = site.store = store
    assert await run == 1
    assert command.signals == [signal.SIGTERM, signal.SIGKILL]
    assert await theirs.holder("db") == "b"
