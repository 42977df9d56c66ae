"""Leases: rights on the bus that expire, with one holder at a time.

It has the value under a lease's key, and takes, renews, finds and releases leases. `leases.keeper`
and `localpuppet lease` decide when.

- A lease is written only if it is free, or over the revision of a lease that this node may replace.
- No right outlasts the time for which the store keeps the lease.
- A store may have lost its leases before it began, so it gives none before these have expired.
"""

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.bus.key_value import KeyListing, KeyRemoval, KeyValue
from localpuppet.fleet.bus.layout import LEASES, MAX_LEASE, parse_lease_name

SCHEMA = 1
# The longest time for which Puppet and commands take a lease.
LONGEST = 60.0
_MICRO = 1_000_000


class Use(StrEnum):
    """What a lease is for: only a `LEADER` lease names a leader, and can be taken over."""

    LEADER = "leader"
    LOCK = "lock"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that this process holds.

    Attributes:
        name: Its name.
        value: Its value on the bus.
        revision: The revision of the last write: another revision means another holder.
        until: Monotonic seconds; from then on, the lease must not be relied on.
        ttl: Seconds for which a renewal is valid.
        fence: Increases with every holder, also after the store has lost its data.
    """

    name: str
    value: bytes
    revision: int
    until: float
    ttl: float
    fence: int = 0

    @property
    def holder(self) -> str:
        """The holder's name, as other nodes see it."""
        return _holder_and_use(_key(self.name), self.value)[0]


class Leases:
    """Takes and releases leases.

    A holder relies on its lease only until `HeldLease.until`, counted from before the write, by its
    own monotonic clock; the store frees the lease no earlier. After a pause, a holder finds that
    `until` has passed, or that the store has another revision.

    Args:
        kv: The store.
        clock: The node's clock.
        holder: The holder's name, as other nodes see it.
        session: The id of this process, unique among those of the same name.
    """

    # When this process first met a store, in monotonic seconds, by the store's beginning.
    _met: ClassVar[BoundedDict[float, float]] = BoundedDict(8)

    def __init__(self, kv: KeyValue, clock: Clock, *, holder: str, session: str) -> None:
        self._kv = kv
        self._clock = clock
        self._holder = holder
        self._session = session

    async def holder(self, name: str) -> str | None:
        """Return the holder of a lease, for any use; `None` if it is free."""
        entry = await self._kv.get(_key(name))
        return None if entry is None else _holder_and_use(entry.key, entry.value)[0]

    async def obstacle(self, name: str, *, ttl: float) -> str:
        """Return why a lease cannot be taken now; empty if it is free."""
        wait = self._wait_for(await self._kv.born(LEASES), ttl)
        if wait > 0:
            return f"the bus is new, or lost its data: it gives leases in {show_duration(wait)}"
        holder = await self.holder(name)
        return "" if holder is None else f"{holder} has it"

    def _wait_for(self, born: float, ttl: float) -> float:
        """Return for how many seconds a store that began at a time gives no lease yet.

        The clocks of this node and of the server may differ: this process then measures the time.
        """
        needs, now = max(ttl, LONGEST), self._clock.monotonic()
        if born not in self._met:
            self._met[born] = now
        first = self._met[born]
        young = born + needs - self._clock.now().timestamp()
        return max(0.0, min(young, first + needs - now))

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
            name: Its name.
            ttl: Seconds.
            use: Its use.
            over: Take over the lease of an earlier process of this holder, as a leader.
        """
        born = await self._kv.born(LEASES)
        if self._wait_for(born, ttl) > 0:
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
            name=name, value=value, revision=revision, until=until, ttl=ttl, fence=fence
        )

    async def wait(
        self, name: str, *, ttl: float, patience: float, use: Use = Use.COMMAND
    ) -> HeldLease | None:
        """Take a lease when it becomes free; `None` if it is not free within `patience` seconds."""
        deadline = self._clock.monotonic() + patience
        while True:
            held = await self.take(name, ttl=ttl, use=use)
            left = deadline - self._clock.monotonic()
            if held is not None or left <= 0:
                return held
            young = self._wait_for(await self._kv.born(LEASES), ttl)
            if young > 0:
                await asyncio.sleep(min(left, young))
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

    async def find(self, held: HeldLease) -> HeldLease | None:
        """Return the lease with the store's revision; `None` if another holder has it.

        For a write with an unknown result, and for the process that resumes a lease. The value
        identifies the holder: it has the session, which no other process writes.
        """
        entry = await self._kv.get(_key(held.name))
        if entry is None or entry.value != held.value:
            return None
        return replace(held, revision=entry.revision)

    async def renew(self, held: HeldLease) -> HeldLease | None:
        """Renew the lease; `None` if another holder has it.

        Raises:
            UnavailableError: The store is unreachable; the lease is valid until `until`.
        """
        begun = self._clock.monotonic()
        revision = await self._kv.set_if_revision(
            _key(held.name), held.value, held.revision, ttl=held.ttl
        )
        if revision is None:
            return None
        return replace(held, revision=revision, until=begun + held.ttl)

    async def give_back(self, held: HeldLease) -> bool:
        """Release a lease; return whether this process held it to the end.

        Raises:
            UnavailableError: The store is unreachable; the lease expires by itself.
        """
        return await self._kv.remove_if_revision(_key(held.name), held.revision)


def _key(name: str) -> str:
    return LEASES + parse_lease_name(name)


def _holder_and_use(key: str, value: bytes) -> tuple[str, str]:
    """Return the holder and the use of a lease."""
    try:
        raw = loads(value)
        check_schema(raw, SCHEMA)
        return str(raw["holder"]), str(raw["use"])
    except (ValueError, KeyError, TypeError, AttributeError, StateError) as error:
        raise UnavailableError(
            "holds something that is not a lease", where=key, hint="find out which process wrote it"
        ) from error
