"""The leases that this node has: taken when Puppet asks, renewed, given back, fenced.

Owns: which leases are ours, for whom, and when they are renewed. Refuses to know: the engine (the
store comes and goes with the connection), and how a run is ended.

Invariants: what is said to be ours is ours for some time to come, by our own monotonic clock; a
lock whose lease was lost ends the run that relied on it, before another can rely on it as well; a
lock is given back when its run is over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from localpuppet.agent import Log
from localpuppet.bus import Held, Leases
from localpuppet.errors import BusyError, InvalidInputError, UnavailableError
from localpuppet.key_value import KeyValue
from localpuppet.ports import Clock

LOCK_TTL = 60.0
STEP = 1.0
# A lease is renewed when a third of its time has passed, so that two renewals may fail; what has
# less than a tenth left is given up: the run that relies on it needs time to end.
RENEW_AT = 1 / 3
GIVE_UP_AT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A lease of ours; `run` relies on it, or nobody in particular does (`leader`)."""

    held: Held
    run: str | None
    lock: bool


class Keeper:
    """Keeps this node's leases.

    Args:
        store: Returns the store, connected.
        clock: The node's clock.
        log: What it says.
        holder: This node, as others are told.
        session: Tells this agent from an earlier one.
        lost: Called with the run that relied on a lost lock: it must end.
    """

    def __init__(
        self,
        store: Callable[[], Awaitable[KeyValue]],
        clock: Clock,
        log: Log,
        *,
        holder: str,
        session: str,
        lost: Callable[[str | None], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._log = log
        self._holder = holder
        self._session = session
        self._lost = lost
        self._kept: dict[str, _Kept] = {}
        self._more = asyncio.Event()

    async def _leases(self) -> Leases:
        kv = await self._store()
        return Leases(kv, self._clock, holder=self._holder, session=self._session)

    async def leader(self, name: str, *, ttl: float, take: bool) -> str | None:
        """Return who holds a lease; take it where nobody does, and renew it from then on.

        Raises:
            UnavailableError: The store cannot be asked.
            InvalidInputError: The name is none.
        """
        kept = self._kept.get(name)
        if kept is not None and not kept.lock and self._valid(kept.held):
            return self._holder
        leases = await self._leases()
        if take and kept is None:
            held = await leases.take(name, ttl=ttl, over=True)
            if held is not None:
                self._keep(held, run=None, lock=False)
                self._log.info(f"took the lease {name}")
                return self._holder
        return await leases.holder(name)

    async def lock(self, name: str, *, wait: float, run: str | None) -> int:
        """Take a lock for a run, waiting for it; return its revision.

        Raises:
            BusyError: It was not free within `wait` seconds.
            UnavailableError: The store cannot be asked.
            InvalidInputError: The name is none, or it is a lease of ours already.
        """
        if name in self._kept:
            raise InvalidInputError(
                f"this node has the lease {name} already", hint="one resource a lock"
            )
        leases = await self._leases()
        held = await leases.wait(name, ttl=LOCK_TTL, patience=wait)
        if held is None:
            holder = await leases.holder(name)
            raise BusyError(
                f"the lock {name} was not free within {wait:g} s",
                hint=f"{holder} has it" if holder else "",
            )
        self._keep(held, run=run, lock=True)
        self._log.info(f"took the lock {name}" + (f" for run {run}" if run else ""))
        return held.revision

    async def unlock(self, name: str) -> bool:
        """Give a lock back; return whether it was ours to the end. One never held is no loss.

        Raises:
            UnavailableError: The store cannot be asked; it expires by itself.
        """
        kept = self._kept.pop(name, None)
        if kept is None:
            return True
        return await (await self._leases()).give_back(kept.held)

    def runs(self) -> set[str]:
        """Return the runs that have locks."""
        return {kept.run for kept in self._kept.values() if kept.lock and kept.run is not None}

    async def over(self, run: str) -> None:
        """Give back what a run that has ended left behind."""
        for name in [name for name, kept in self._kept.items() if kept.run == run]:
            try:
                await self.unlock(name)
            except UnavailableError as error:
                self._log.warning(f"the lock {name} expires by itself: {error}")

    async def keep(self, stop: asyncio.Event) -> None:
        """Renew what is ours until `stop` is set, and give back all of it then."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self.step()
                self._more.clear()
                # Nothing to renew, nothing to wake for: most agents hold no lease.
                more = asyncio.create_task(self._more.wait())
                seconds = STEP if self._kept else None
                await asyncio.wait(
                    {stopping, more}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                more.cancel()
        finally:
            stopping.cancel()
        for name in list(self._kept):
            try:
                await self.unlock(name)
            except UnavailableError as error:
                self._log.warning(f"the lease {name} expires by itself: {error}")

    async def step(self) -> None:
        """Renew what is due; let go of what is lost."""
        for name, kept in list(self._kept.items()):
            age = self._clock.monotonic() - (kept.held.until - kept.held.ttl)
            if age < kept.held.ttl * RENEW_AT:
                continue
            renewed: Held | None = None
            problem = "somebody else has it"
            try:
                renewed = await (await self._leases()).renew(kept.held)
            except UnavailableError as error:
                if age < kept.held.ttl * GIVE_UP_AT:
                    continue
                problem = str(error)
            if self._kept.get(name) is not kept:
                continue  # given back meanwhile
            if renewed is not None:
                self._kept[name] = _Kept(held=renewed, run=kept.run, lock=kept.lock)
                continue
            del self._kept[name]
            self._log.warning(f"lost the lease {name}: {problem}")
            if kept.lock:
                self._lost(kept.run)

    def _keep(self, held: Held, *, run: str | None, lock: bool) -> None:
        self._kept[held.name] = _Kept(held=held, run=run, lock=lock)
        self._more.set()

    def _valid(self, held: Held) -> bool:
        return self._clock.monotonic() < held.until - held.ttl * (1 - GIVE_UP_AT)
