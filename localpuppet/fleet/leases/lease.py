"""Leases: rights on the bus that expire, one holder at a time.

Owns: what stands under a lease's key, and how it is taken, renewed, found again and given back.
Refuses to know: who renews it and when (`leases.keeper`, `localpuppet lease`), engines.

Invariants: a lease is written only where nobody has it, or over the revision of one that is ours to
replace; what others may rely on never lasts longer than the store keeps it.
"""

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.bus.key_value import Gone, KeyValue, Listing
from localpuppet.fleet.bus.layout import LEASES, MAX_LEASE, parse_lease_name


class Use(StrEnum):
    """What a lease is for: only who leads may be taken for a leader, and be followed by itself."""

    LEADER = "leader"
    LOCK = "lock"
    COMMAND = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A lease that we have.

    Attributes:
        name: Its name.
        value: What is written there.
        revision: That of our last write: whoever has another one took it from us.
        until: Monotonic seconds; from then on we must not rely on it.
        ttl: Seconds for which a renewal is good.
    """

    name: str
    value: bytes
    revision: int
    until: float
    ttl: float

    @property
    def holder(self) -> str:
        """Who we are, as others are told."""
        return _said(_key(self.name), self.value)[0]


class Leases:
    """Takes and gives back leases.

    A holder relies on its lease only until `Held.until`, counted from before the write that made
    it, by its own monotonic clock; the store lets go of it no earlier. A holder that was paused
    finds that `until` has passed, or that its revision is not the store's any more.

    Args:
        kv: The store.
        clock: The node's clock.
        holder: Who we are, as others are told.
        session: Tells this process from every other one of the same name.
    """

    def __init__(self, kv: KeyValue, clock: Clock, *, holder: str, session: str) -> None:
        self._kv = kv
        self._clock = clock
        self._holder = holder
        self._session = session

    async def holder(self, name: str) -> str | None:
        """Return the holder of a lease, for any use; `None` if it is free."""
        entry = await self._kv.get(_key(name))
        return None if entry is None else _said(entry.key, entry.value)[0]

    async def leader(self, name: str) -> str | None:
        """Return the leader; `None` without one, also if the name is a lock's or a command's."""
        entry = await self._kv.get(_key(name))
        if entry is None:
            return None
        holder, use = _said(entry.key, entry.value)
        return holder if use == Use.LEADER else None

    async def take(
        self, name: str, *, ttl: float, use: Use = Use.COMMAND, over: bool = False
    ) -> Held | None:
        """Take a lease; `None` when somebody has it.

        Args:
            name: Its name.
            ttl: Seconds.
            use: What for.
            over: Take over what an earlier process of the same holder had, as a leader.
        """
        said = {"holder": self._holder, "session": self._session, "use": use}
        value = json.dumps(said).encode()
        begun = self._clock.monotonic()
        revision = await self._kv.add_if_new(_key(name), value, ttl=ttl)
        if revision is None and over:
            entry = await self._kv.get(_key(name))
            if entry is not None and _said(entry.key, entry.value) == (self._holder, Use.LEADER):
                revision = await self._kv.set_if_revision(entry.key, value, entry.revision, ttl=ttl)
        if revision is None:
            return None
        return Held(name=name, value=value, revision=revision, until=begun + ttl, ttl=ttl)

    async def wait(
        self, name: str, *, ttl: float, patience: float, use: Use = Use.COMMAND
    ) -> Held | None:
        """Take a lease as soon as it is free; `None` when it was not within `patience` seconds."""
        deadline = self._clock.monotonic() + patience
        while True:
            held = await self.take(name, ttl=ttl, use=use)
            left = deadline - self._clock.monotonic()
            if held is not None or left <= 0:
                return held
            await self._freed(name, min(left, ttl))

    async def _freed(self, name: str, seconds: float) -> None:
        """Wait until a lease is let go of, at most so long: an expiry may be told to nobody."""
        try:
            async with asyncio.timeout(seconds):
                async with aclosing(self._kv.watch(LEASES, largest=MAX_LEASE)) as changes:
                    async for change in changes:
                        if isinstance(change, Gone) and change.key == _key(name):
                            return
                        if isinstance(change, Listing) and all(
                            entry.key != _key(name) for entry in change.entries
                        ):
                            return
        except TimeoutError:
            return

    async def find(self, held: Held) -> Held | None:
        """Return the lease with the store's revision; `None` when it is not ours any more.

        For whom a write has left in doubt, and for the process that comes after the one that took
        it. That it is ours is told by its value, which names the session: nobody else writes that.
        """
        entry = await self._kv.get(_key(held.name))
        if entry is None or entry.value != held.value:
            return None
        return Held(
            name=held.name,
            value=held.value,
            revision=entry.revision,
            until=held.until,
            ttl=held.ttl,
        )

    async def renew(self, held: Held) -> Held | None:
        """Return the lease, good for its ttl again; `None` when it is not ours any more.

        Raises:
            UnavailableError: The store cannot be asked; it is good until `until`.
        """
        begun = self._clock.monotonic()
        revision = await self._kv.set_if_revision(
            _key(held.name), held.value, held.revision, ttl=held.ttl
        )
        if revision is None:
            return None
        return Held(
            name=held.name,
            value=held.value,
            revision=revision,
            until=begun + held.ttl,
            ttl=held.ttl,
        )

    async def give_back(self, held: Held) -> bool:
        """Let go of a lease; return whether it was ours to the end.

        Raises:
            UnavailableError: The store cannot be asked; it expires by itself.
        """
        return await self._kv.remove_if_revision(_key(held.name), held.revision)


def _key(name: str) -> str:
    return LEASES + parse_lease_name(name)


def _said(key: str, value: bytes) -> tuple[str, str]:
    """Return who holds a lease and what for; the latter is empty where it is not said."""
    try:
        raw = loads(value)
        return str(raw["holder"]), str(raw.get("use", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnavailableError(
            "holds something that is not a lease", where=key, hint="who wrote it?"
        ) from error
