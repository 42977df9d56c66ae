"""The leases that this node has: taken when Puppet asks, renewed, given back, fenced.

Owns: which leases are ours, for whom, and when they are renewed. Refuses to know: the engine (the
store comes and goes with the connection), how a run is ended, and how it is told that one goes on.

Invariants: what is said to be ours is ours for some time to come, by our own monotonic clock; a
lock whose lease was lost ends the run that relied on it, before another can rely on it as well; a
lock is given back when its run is over; a lock is in the book before its run hears that it has it,
so that the next agent goes on with it, and leaves the book before it is given back, so that the
next agent does not miss it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from localpuppet.base.errors import BusyError, InvalidInputError, StateError, UnavailableError
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.fleet.leases.book import Book, LockUser, Noted
from localpuppet.fleet.leases.lease import Held, Leases, Use

LOCK_TTL = 60.0
STEP = 1.0
# A lease is renewed when a third of its time has passed, so that two renewals may fail; what has
# less than a tenth left is given up: the run that relies on it needs time to end.
RENEW_AT = 1 / 3
GIVE_UP_AT = 0.9
# Seconds for an agent that has just started to reach the bus and look whether it still has what
# the one before had, where that one's time is up.
LOOK_AGAIN = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A lease of ours.

    Attributes:
        held: As we know it.
        user: Who relies on the lock; `None` for a leader's.
        sure: The store's revision is known: no write was left in doubt.
        ours: Whether this agent took it, or has found that it is still ours.
        give_up_at: Monotonic seconds; when it was not renewed until then, it counts as lost.
        ending: It is being given back.
        turn: Whoever writes it on the bus.
    """

    held: Held
    user: LockUser | None
    sure: bool = True
    ours: bool = True
    give_up_at: float
    ending: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __str__(self) -> str:
        return f"the {'lease' if self.user is None else 'lock'} {self.held.name}"


class Keeper:
    """Keeps this node's leases.

    Args:
        leases: Returns the leases of this node's session, on a store that is connected.
        clock: The node's clock.
        log: What it says.
        book: What is ours, on disk.
        relies: Whether somebody who asked for a lock goes on.
        lost: Called with whoever relied on a lost lock: it must end.
    """

    def __init__(
        self,
        leases: Callable[[], Awaitable[Leases]],
        clock: Clock,
        log: Log,
        *,
        book: Book,
        relies: Callable[[LockUser], bool],
        lost: Callable[[LockUser], None],
    ) -> None:
        self._leases = leases
        self._clock = clock
        self._log = log
        self._book = book
        self._relies = relies
        self._lost = lost
        self._kept: dict[str, _Kept] = {}
        self._more = asyncio.Event()

    def resume(self) -> None:
        """Go on with what an earlier agent had; call it once, when no other agent can be there.

        Raises:
            StateError: The book cannot be read.
        """
        soon = self._clock.monotonic() + LOOK_AGAIN
        for noted in self._book.entries():
            held = Held(
                name=noted.name, value=noted.value, revision=0, until=noted.until, ttl=noted.ttl
            )
            give_up_at = max(_give_up_at(held), soon)
            self._kept[noted.name] = _Kept(
                held=held, user=noted.user, sure=False, ours=False, give_up_at=give_up_at
            )

    async def leader(self, name: str, *, ttl: float, take: bool) -> str | None:
        """Return who leads; take the lease where nobody has it, and renew it from then on.

        Where a lock or a command has it, here or elsewhere, nobody leads.

        Raises:
            InvalidInputError: The text is not a lease name.
        """
        kept = self._kept.get(name)
        if kept is not None and kept.user is None and self._valid(kept):
            return kept.held.holder
        leases = await self._leases()
        if take and kept is None:
            held = await leases.take(name, ttl=ttl, use=Use.LEADER, over=True)
            if held is not None:
                self._keep(held, user=None)
                self._note(self._kept[name])
                self._log.info(f"took the lease {name}", kind=LineKind.LEASE)
                return held.holder
        return await leases.leader(name)

    async def lock(self, name: str, *, wait: float, user: LockUser) -> int:
        """Take a lock for somebody, waiting for it; return its revision.

        Raises:
            BusyError: It was not free within `wait` seconds.
            StateError: It could not be written down, and was given back.
            InvalidInputError: The text is not a lease name, or it is a lease of ours already, or
                nobody goes on who would rely on it.
        """
        kept = self._kept.get(name)
        if kept is not None and self._is_over(kept):
            await self._let_go(name)
        elif kept is not None:
            raise InvalidInputError(
                f"this node has the lease {name} already",
                hint=f"{kept.user} relies on it" if kept.user else "it leads by that name",
            )
        if not self._relies(user):
            raise InvalidInputError(
                f"no run or process goes on here that would rely on the lock {name}",
                hint="ask from the process that is to have it",
            )
        leases = await self._leases()
        held = await leases.wait(name, ttl=LOCK_TTL, patience=wait, use=Use.LOCK)
        if held is None:
            holder = await leases.holder(name)
            raise BusyError(
                f"the lock {name} was not free within {wait:g} s",
                hint=f"{holder} has it" if holder else "",
            )
        self._keep(held, user=user)
        try:
            self._book.note(_noted(self._kept[name]))
        except StateError:
            self._kept[name] = replace(self._kept[name], ending=True)
            raise
        self._log.info(f"took the lock {name} for {user}", kind=LineKind.LEASE)
        return held.revision

    async def unlock(self, name: str, *, user: LockUser) -> bool:
        """Release a lock; return whether we held it until now.

        Releasing a lock that we never held returns True.

        Raises:
            UnavailableError: The store cannot be asked; it is tried again until it has expired.
        """
        kept = self._kept.get(name)
        if kept is None or kept.user is None or not kept.user.is_same(user):
            return True
        return await self._let_go(name)

    async def keep(self, stop: asyncio.Event) -> None:
        """Renew what is ours until `stop` is set; give back then what nobody relies on."""
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
        await self._leave()

    async def step(self) -> None:
        """Renew what is due; give back what nobody relies on; let go of what is lost."""
        for name, kept in list(self._kept.items()):
            if self._is_over(kept):
                await self._end(name, kept)
            elif not kept.sure or self._clock.monotonic() >= _renew_at(kept.held):
                await self._renew(name)

    async def _leave(self) -> None:
        for name, kept in list(self._kept.items()):
            if kept.user is not None and not self._is_over(kept):
                self._log.info(
                    f"left {kept} to the next agent: {kept.user} relies on it", kind=LineKind.LEASE
                )
                continue
            try:
                await self._let_go(name)
            except UnavailableError as error:
                self._log.warning(f"{kept} expires by itself: {error}", kind=LineKind.LEASE)

    async def _end(self, name: str, kept: _Kept) -> None:
        """Give back what nobody relies on, if that can be done; else it is tried again."""
        if not kept.ending:
            self._log.info(f"giving back {kept}: {kept.user} is over", kind=LineKind.LEASE)
        try:
            await self._let_go(name)
        except UnavailableError as error:
            late = self._clock.monotonic() >= max(kept.held.until, kept.give_up_at)
            now = self._kept.get(name)
            if late and now is not None and now.turn is kept.turn:
                del self._kept[name]
                self._log.warning(f"{kept} expires by itself: {error}")

    async def _let_go(self, name: str) -> bool:
        """Give a lease back; return whether it was ours to the end.

        Raises:
            UnavailableError: The store cannot be asked: it is still to be given back.
        """
        before = self._kept.get(name)
        if before is None:
            return True
        async with before.turn:
            kept = self._kept.get(name)
            if kept is None or kept.turn is not before.turn:
                return True  # somebody else has done it meanwhile
            self._strike(name)
            ending = self._kept[name] = replace(kept, ending=True, sure=False)
            leases = await self._leases()
            found: Held | None = kept.held if kept.sure else await leases.find(kept.held)
            mine = found is not None and await leases.give_back(found)
            if self._kept.get(name) is ending:  # or somebody who waited here has it by now
                del self._kept[name]
            return mine

    async def _renew(self, name: str) -> None:
        before = self._kept.get(name)
        if before is None:
            return
        async with before.turn:
            kept = self._kept.get(name)
            if kept is None or kept.turn is not before.turn or kept.ending:
                return  # given back meanwhile
            problem = "somebody else has it, or it has expired"
            try:
                leases = await self._leases()
                found: Held | None = kept.held if kept.sure else await leases.find(kept.held)
                found = None if found is None else await leases.renew(found)
            except UnavailableError as error:
                if self._clock.monotonic() < kept.give_up_at:
                    if self._kept.get(name) is kept:  # whether the write took place is not known
                        self._kept[name] = replace(kept, sure=False)
                    return
                problem, found = str(error), None
            if found is not None:
                self._keep(found, user=kept.user, turn=kept.turn)
                self._note(self._kept[name])
                if not kept.ours:
                    relies = f" for {kept.user}" if kept.user else ""
                    self._log.info(f"took up {kept} again{relies}", kind=LineKind.LEASE)
                return
            self._log.warning(f"lost the lease {name}: {problem}", kind=LineKind.LEASE)
            if kept.user is not None:
                self._lost(kept.user)
            if self._kept.get(name) is kept:  # or somebody who waited here has it by now
                del self._kept[name]
                self._strike(name)

    def _keep(self, held: Held, *, user: LockUser | None, turn: asyncio.Lock | None = None) -> None:
        self._kept[held.name] = _Kept(
            held=held, user=user, give_up_at=_give_up_at(held), turn=turn or asyncio.Lock()
        )
        self._more.set()

    def _note(self, kept: _Kept) -> None:
        """Write down what is ours; without that only the next agent knows less."""
        try:
            self._book.note(_noted(kept))
        except StateError as error:
            self._log.warning(
                f"{kept} is not written down for the next agent: {error}", kind=LineKind.LEASE
            )

    def _strike(self, name: str) -> None:
        try:
            self._book.strike(name)
        except StateError as error:
            self._log.warning(
                f"the next agent will look for the lease {name} again: {error}", kind=LineKind.LEASE
            )

    def _is_over(self, kept: _Kept) -> bool:
        """Return whether a lock is to be given back: nobody relies on it any more."""
        return kept.ending or (kept.user is not None and not self._relies(kept.user))

    def _valid(self, kept: _Kept) -> bool:
        return self._clock.monotonic() < _give_up_at(kept.held)


def _renew_at(held: Held) -> float:
    return held.until - held.ttl * (1 - RENEW_AT)


def _give_up_at(held: Held) -> float:
    return held.until - held.ttl * (1 - GIVE_UP_AT)


def _noted(kept: _Kept) -> Noted:
    held = kept.held
    return Noted(name=held.name, value=held.value, ttl=held.ttl, until=held.until, user=kept.user)
