"""Leases: rights on the bus that expire, with one holder at a time, and commands under one.

- A lease is written only if it is free, or over the revision of a lease that this node may replace.
- No right outlasts the time for which the store keeps the lease.
- A new store may be one that has lost its leases. If this node or an agent knew an earlier one, it
  gives none before these have expired. Otherwise it gives them after `SETTLE` seconds, in which
  holders write theirs again.

    start the command -> renew the lease -> lost? end the command before another can have the lease
"""

import asyncio
import json
import signal
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_LEASE
from localpuppet.fleet.bus.key_value import KeyListing, KeyRemoval, KeyValue
from localpuppet.fleet.bus.layout import LEASES, parse_lease_name

SCHEMA = 1
# The longest time for which Puppet's locks and commands take a lease, and a leader.
LONGEST = 60.0
LONGEST_LEADER = 86400
# Seconds for which a store that seems to be the first gives no lease: most agents are back by then.
SETTLE = 2.0
# Seconds between two looks of a holder whether the store is still the one that has its lease.
LOOK = 1.0
_MICRO = 1_000_000
# Errors of a reader of bytes that are not a lease.
_NO_LEASE = (ValueError, KeyError, TypeError, AttributeError)


class Use(StrEnum):
    """What a lease is for: only a `LEADER` lease names a leader, and can be taken over."""

    LEADER = "leader"
    LOCK = "lock"
    COMMAND = "command"


class HeldLease(Value):
    """A lease that this process holds.

    Attributes:
        revision: The revision of the last write: another revision means another holder.
        until: Monotonic seconds; from then on, the lease must not be relied on.
        born: When the store of that revision began; 0 if unknown.
        fence: Increases with every holder, also after the store has lost its data.
    """

    name: str
    value: bytes
    revision: int
    until: float
    ttl: float
    born: float = 0.0
    fence: int = 0

    @property
    def holder(self) -> str:
        """The holder's name, as other nodes see it."""
        return _holder_and_use(_key(self.name), self.value)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStores:
    """The stores before the present one, as far as this node and the agents of others know.

    `path` has the beginning of the store of which this node takes leases. `online` returns whether
    an agent with an entry is online that started before a time.
    """

    path: Path
    online: Callable[[KeyValue, float], Awaitable[bool]]
    _met: BoundedDict[float, float] = field(default_factory=lambda: BoundedDict(8), init=False)

    def met(self, born: float, now: float) -> float:
        """Return when this process first met a store, in monotonic seconds."""
        if born not in self._met:
            self._met[born] = now
        return self._met[born]

    def knew_another(self, born: float, *, now: float) -> bool:
        """Return whether this node knew another store than the one that began then; note that."""
        try:
            known = read_json(self.path).get("born")
        except FileNotFoundError:
            known = None
        except StateError:
            known = 0.0  # unknown: perhaps another one
        if known is None or (known != born and now > born + LONGEST_LEADER):
            with suppress(StateError):  # the agents remain
                make_private(self.path.parent)
                write_json(self.path, {"schema": SCHEMA, "born": born})
        return known not in (None, born)


class Leases:
    """Takes and releases leases.

    A holder relies on its lease only until `HeldLease.until`, counted from before the write, by its
    own monotonic clock; the store frees the lease no earlier. After a pause, a holder finds that
    `until` has passed, or that the store has another revision.

    Args:
        holder: The holder's name, as other nodes see it.
        session: The id of this process, unique among those of the same name.
    """

    def __init__(
        self, kv: KeyValue, clock: Clock, *, holder: str, session: str, stores: KnownStores
    ) -> None:
        self._kv = kv
        self._clock = clock
        self._stores = stores
        self._holder = holder
        self._session = session

    async def holder(self, name: str) -> str | None:
        """Return the holder of a lease, for any use; `None` if it is free."""
        entry = await self._kv.get(_key(name))
        return None if entry is None else _holder_and_use(entry.key, entry.value)[0]

    async def obstacle(self, name: str, *, ttl: float) -> str:
        """Return why a lease cannot be taken now; empty if it is free."""
        wait = await self._wait_for(await self._kv.born(LEASES), ttl)
        if wait > 0:
            return f"the bus is new, or lost its data: it gives leases in {show_duration(wait)}"
        holder = await self.holder(name)
        return "" if holder is None else f"{holder} has it"

    async def _wait_for(self, born: float, ttl: float) -> float:
        """Return for how many seconds a store that began at a time gives no lease yet.

        The clocks of this node and of the server may differ: this process then measures the time.
        """
        needs, now = max(ttl, LONGEST), self._clock.monotonic()
        first, today = self._stores.met(born, now), self._clock.now().timestamp()
        knew_another = self._stores.knew_another(born, now=today)
        left = min(born + needs - today, first + needs - now)
        if left > 0 and not (knew_another or await self._stores.online(self._kv, born)):
            left = min(left, first + SETTLE - now)
        return max(0.0, left)

    async def leader(self, name: str) -> str | None:
        """Return the leader; `None` without one, or if a lock or a command has the lease."""
        entry = await self._kv.get(_key(name))
        if entry is None:
            return None
        holder, use = _holder_and_use(entry.key, entry.value)
        return holder if use == Use.LEADER else None

    async def take(
        self, name: str, *, ttl: float, use: Use = Use.COMMAND, over: bool = False
    ) -> HeldLease | None:
        """Take a lease; `None` if it is not free.

        Args:
            ttl: Seconds.
            over: Take over the lease of an earlier process of this holder, as a leader.
        """
        born = await self._kv.born(LEASES)
        if await self._wait_for(born, ttl) > 0:
            return None
        lease = {"schema": SCHEMA, "holder": self._holder, "session": self._session, "use": use}
        value = json.dumps(lease).encode()
        begun = self._clock.monotonic()
        revision = await self._kv.add_if_new(_key(name), value, ttl=ttl)
        if revision is None and over:
            entry = await self._kv.get(_key(name))
            if entry is not None and _holder_and_use(entry.key, entry.value) == (
                self._holder,
                Use.LEADER,
            ):
                revision = await self._kv.set_if_revision(entry.key, value, entry.revision, ttl=ttl)
        if revision is None:
            return None
        # Revisions restart with the store; it has less than a million writes a second.
        fence = int(born * _MICRO) + revision
        until = begun + ttl
        return HeldLease(
            name=name,
            value=value,
            revision=revision,
            until=until,
            ttl=ttl,
            born=born,
            fence=fence,
        )

    async def wait(
        self, name: str, *, ttl: float, patience: float, use: Use = Use.COMMAND
    ) -> HeldLease | None:
        """Take a lease when it becomes free; `None` if it is not free within `patience` seconds.

        It waits until a store that seems to be the first has settled, whatever `patience` is.
        """
        deadline = self._clock.monotonic() + patience
        while True:
            held = await self.take(name, ttl=ttl, use=use)
            if held is not None:
                return held
            left = deadline - self._clock.monotonic()
            young = await self._wait_for(await self._kv.born(LEASES), ttl)
            if 0 < young <= max(left, SETTLE):
                await asyncio.sleep(young)
            elif left <= 0:
                return None
            elif young > 0:
                await asyncio.sleep(left)
            else:
                await self._freed(name, min(left, ttl))

    async def _freed(self, name: str, seconds: float) -> None:
        """Wait until a lease is free, at most `seconds`: a store may not report an expiry."""
        try:
            async with asyncio.timeout(seconds):
                async with aclosing(self._kv.watch(LEASES, largest=MAX_LEASE)) as changes:
                    async for change in changes:
                        if isinstance(change, KeyRemoval) and change.key == _key(name):
                            return
                        if isinstance(change, KeyListing) and all(
                            entry.key != _key(name) for entry in change.entries
                        ):
                            return
        except TimeoutError:
            return

    async def loss(self, held: HeldLease) -> None:
        """Return when the store of a lease may have lost it: it is unreachable, or another one."""
        with suppress(UnavailableError):
            while not await self.is_lost(held):
                await asyncio.sleep(LOOK)

    async def is_lost(self, held: HeldLease) -> bool:
        """Return whether the store is another one than that which had the lease."""
        return held.born not in (0.0, await self._kv.born(LEASES))

    async def find(self, held: HeldLease) -> HeldLease | None:
        """Return the lease with the store's revision; `None` if another holder has it.

        For a write with an unknown result, and for the process that resumes a lease. The value
        identifies the holder: it has the session, which no other process writes. If the store has
        lost all leases, this one is returned as it was, for `renew`.
        """
        born = await self._kv.born(LEASES)
        entry = await self._kv.get(_key(held.name))
        if entry is None and held.born not in (0.0, born):
            return held
        if entry is None or entry.value != held.value:
            return None
        return replace(held, revision=entry.revision, born=born)

    async def renew(self, held: HeldLease) -> HeldLease | None:
        """Renew the lease; `None` if another holder has it.

        A store that has lost the lease gets it again, unless it has expired or was given away.

        Raises:
            UnavailableError: The store is unreachable; the lease is valid until `until`.
        """
        begun, born = self._clock.monotonic(), await self._kv.born(LEASES)
        if born == held.born:
            revision = await self._kv.set_if_revision(
                _key(held.name), held.value, held.revision, ttl=held.ttl
            )
        elif begun < held.until:
            revision = await self._kv.add_if_new(_key(held.name), held.value, ttl=held.ttl)
        else:
            revision = None
        if revision is None:
            return None
        return replace(held, revision=revision, born=born, until=begun + held.ttl)

    async def give_back(self, held: HeldLease) -> bool:
        """Release a lease; return whether this process held it to the end.

        Raises:
            UnavailableError: The store is unreachable; the lease expires by itself.
        """
        if await self.is_lost(held):  # its revision may be that of another holder
            return self._clock.monotonic() < held.until
        return await self._kv.remove_if_revision(_key(held.name), held.revision)


def _key(name: str) -> str:
    return LEASES + parse_lease_name(name)


def _holder_and_use(key: str, value: bytes) -> tuple[str, str]:
    try:
        raw = loads(value)
        check_schema(raw, SCHEMA)
        return SignerName.parse(raw["holder"]), str(raw["use"])
    except (*_NO_LEASE, InvalidInputError, StateError) as error:
        raise UnavailableError(
            "holds something that is not a lease", where=key, hint="find out which process wrote it"
        ) from error


RETRY = 1.0
# If the renewal fails, the command gets TERM when this part of the ttl is left, and KILL a second
# before another holder can take the lease.
MARGIN = 0.3


class GuardedCommand(Protocol):
    """A command that ends if localpuppet dies or hangs: `machine.guarded_command`."""

    async def start(self, *, until: float, more: Mapping[str, str]) -> None:
        """Start the command; it is killed at `until` (monotonic seconds).

        Raises:
            OSError: The command cannot be started.
        """

    def good_until(self, until: float) -> None:
        """Extend the command's deadline to `until` (monotonic seconds)."""

    def signal(self, number: int) -> None:
        """Signal the command."""

    def kill(self) -> None:
        """Kill the command and all its descendants."""

    async def wait(self) -> int | None:
        """Return the command's exit code, `-N` for signal N; `None` if its guard was killed."""


@dataclass(frozen=True, slots=True)
class LeasedCommand:
    """Runs a command under a lease."""

    leases: Leases
    command: GuardedCommand
    _: KW_ONLY
    program: str
    clock: Clock
    fail: Callable[[str], None]
    note: Callable[[str], None]

    async def run(self, held: HeldLease) -> int:
        """Run the command; return its exit code, or 1 if the lease was lost meanwhile.

        Raises:
            InvalidInputError: The command cannot be started; the lease was released.
        """
        command = self.command
        more = {"LOCALPUPPET_LEASE_REVISION": str(held.fence)}
        try:
            await command.start(until=held.until - RETRY, more=more)
        except OSError as error:
            await self.leases.give_back(held)
            raise InvalidInputError(
                f"cannot be run: {error.strerror}", where=self.program
            ) from error
        ended = asyncio.create_task(command.wait())
        pause = held.ttl / 3
        while not await self._pause(held, ended, pause):
            try:
                renewed = await self._renew(held)
            except UnavailableError as error:
                problem, pause = str(error), RETRY
                if self.clock.monotonic() < held.until - held.ttl * MARGIN:
                    continue
                patience = held.until - RETRY - self.clock.monotonic()
            else:
                problem, pause, patience = "another node has it", held.ttl / 3, RETRY
                if renewed is not None:
                    held = renewed
                    command.good_until(held.until - RETRY)
                    continue
            self.fail(f"the lease {held.name} was lost: {problem}; ending the command")
            await self._end(ended, patience)
            return 1
        if not await self._give_back(held):
            self.fail(f"the lease {held.name} was lost before the command ended")
            return 1
        code = ended.result()
        if code is None:
            self.fail("the command's watching process was killed, so the command was killed too")
            return 1
        return code if code >= 0 else 128 - code

    async def _pause(
        self, held: HeldLease, ended: "asyncio.Task[int | None]", seconds: float
    ) -> bool:
        """Wait, but no longer than the store has the lease; return whether the command ended."""
        loss = asyncio.create_task(self.leases.loss(held))
        try:
            await asyncio.wait([ended, loss], timeout=seconds, return_when=FIRST_COMPLETED)
        finally:
            loss.cancel()
        return ended.done()

    async def _renew(self, held: HeldLease) -> HeldLease | None:
        """Renew the lease in the time that is left for it, but wait at least `RETRY` seconds."""
        left = held.until - held.ttl * MARGIN - self.clock.monotonic()
        try:
            return await asyncio.wait_for(self.leases.renew(held), max(left, RETRY))
        except TimeoutError as error:
            raise UnavailableError("the bus does not answer", where="bus") from error

    async def _give_back(self, held: HeldLease) -> bool:
        """Release the lease; return whether this node held it to the end."""
        try:
            return await self.leases.give_back(held)
        except UnavailableError as error:
            self.note(f"the lease {held.name} expires by itself: {error}")
            return self.clock.monotonic() < held.until

    async def _end(self, ended: "asyncio.Task[int | None]", patience: float) -> None:
        self.command.signal(signal.SIGTERM)
        done, _ = await asyncio.wait([ended], timeout=max(patience, 0))
        if not done:
            self.command.kill()
            await ended
