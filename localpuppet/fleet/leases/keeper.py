"""The leases of this node: taken when Puppet requests them, renewed, released, stored on disk.

The file is `agent/leases.sqlite` in the state directory. Entries survive a kill -9 and a power cut;
a monotonic time of another boot is never used. Whether an entry is still true on the bus is not
known here.

- A lease reported as held stays valid for some time, by the node's monotonic clock.
- If a lock is lost, the run that relied on it ends before another node can rely on the lock.
- A lock is released when its run is over.
- A lock is in the book before its run gets it, so that the next agent resumes it, and leaves the
  book before its release, so that the next agent does not miss it.

The store changes with each connection. How a run ends, and whether one is running, is decided by
callables.

- Only the processes that use the lock get a signal, whether this agent, an earlier one or a person
  started them.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from localpuppet.base.errors import BusyError, InvalidInputError, StateError, UnavailableError
from localpuppet.base.machine.ports import Clock, LineKind, Log, ProcessId, ProcessTable
from localpuppet.base.machine.sqlite import Database, Format
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.leases.lease import HeldLease, Leases, Use
from localpuppet.node.runs.run import RunState, Status

if TYPE_CHECKING:
    from localpuppet.node.runs.run_records import Records


_VERSION = 2
_TABLES = """
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, value BLOB NOT NULL, ttl REAL NOT NULL, until REAL NOT NULL,
    boot TEXT NOT NULL, is_lock INTEGER NOT NULL, run TEXT, pid INTEGER, started INTEGER
) STRICT, WITHOUT ROWID;
"""


class LockUser(Value):
    """The run or process that relies on a lock."""

    run: str | None = None
    process: ProcessId | None = None

    def is_same(self, other: "LockUser") -> bool:
        """Return whether both are the same run or, without a run, the same process."""
        if self.run is not None or other.run is not None:
            return self.run == other.run
        return self.process == other.process

    def __str__(self) -> str:
        """Return `run ID` or `process 123`."""
        if self.run is not None:
            return f"run {self.run}"
        return "an unknown process" if self.process is None else f"process {self.process.pid}"


class LeaseRecord(Value):
    """A lease in the book.

    Attributes:
        until: Monotonic seconds until which the last renewal is valid; 0 after a reboot.
        user: The user of the lock; `None` for a leader's lease.
    """

    name: str
    value: bytes
    ttl: float
    until: float
    user: LockUser | None


class LeaseStorage(Protocol):
    """The port of `LeaseBook`."""

    def note(self, noted: LeaseRecord) -> None:
        """Write a lease, or overwrite it."""

    def strike(self, name: str) -> None:
        """Delete a lease."""

    def entries(self) -> Sequence[LeaseRecord]:
        """Return all leases."""


class LeaseBook:
    """The book, on disk."""

    def __init__(self, path: Path, *, boot_id: str) -> None:
        self._database = Database(
            path,
            Format(tables=_TABLES, version=_VERSION),
            damaged="move it away: leases of an earlier agent then expire",
        )
        self._boot_id = boot_id

    def note(self, noted: LeaseRecord) -> None:
        """Write a lease, or overwrite it."""
        user = noted.user or LockUser()
        process = user.process
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    noted.name,
                    noted.value,
                    noted.ttl,
                    noted.until,
                    self._boot_id if process is None else process.boot_id,
                    noted.user is not None,
                    user.run,
                    process and process.pid,
                    process and process.started,
                ),
            )

    def strike(self, name: str) -> None:
        """Delete a lease."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM leases WHERE name = ?", (name,))

    def entries(self) -> list[LeaseRecord]:
        if not self._database.path.exists():
            return []  # most agents never have a lease
        with self._database.use() as connection:
            rows = connection.execute("SELECT * FROM leases ORDER BY name").fetchall()
        return [self._noted(row) for row in rows]

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()

    def _noted(self, row: tuple[Any, ...]) -> LeaseRecord:
        name, value, ttl, until, boot, is_lock, run, pid, started = row
        process = None
        if pid is not None and started is not None:
            process = ProcessId(pid=pid, boot_id=boot, started=started)
        return LeaseRecord(
            name=name,
            value=value,
            ttl=ttl,
            until=until if boot == self._boot_id else 0.0,
            user=LockUser(run=run, process=process) if is_lock else None,
        )


LOCK_TTL = 60.0
STEP = 1.0
# A lease is renewed after a third of its time, so that two renewals may fail. It is given up with
# less than a tenth left: the run that relies on it needs time to end.
RENEW_AT = 1 / 3
GIVE_UP_AT = 0.9
# Seconds for a new agent to reach the bus and check leases of the last agent that are out of time.
LOOK_AGAIN = 10.0


class _Kept(Value):
    """A lease of this node.

    Attributes:
        sure: Whether the store's revision is known: no write was left in doubt.
        confirmed: Whether this agent took it, or has verified that this node still has it.
        give_up_at: Monotonic seconds; without a renewal until then, it counts as lost.
        ending: Whether it is being released.
    """

    held: HeldLease
    user: LockUser | None
    sure: bool = True
    confirmed: bool = True
    give_up_at: float
    ending: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __str__(self) -> str:
        return f"the {'lease' if self.user is None else 'lock'} {self.held.name}"


@dataclass(slots=True, eq=False)
class Keeper:
    """Keeps this node's leases; `relies` returns whether the user of a lock is still running."""

    leases: Callable[[], Awaitable[Leases]]
    clock: Clock
    log: Log
    _: KW_ONLY
    book: LeaseStorage
    relies: Callable[[LockUser], bool]
    lost: Callable[[LockUser], None]
    _kept: dict[str, _Kept] = field(default_factory=dict, init=False)
    _more: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def resume(self) -> None:
        """Resume the leases of an earlier agent; call it once, when no other agent can run."""
        soon = self.clock.monotonic() + LOOK_AGAIN
        for noted in self.book.entries():
            held = HeldLease(
                name=noted.name, value=noted.value, revision=0, until=noted.until, ttl=noted.ttl
            )
            give_up_at = max(_give_up_at(held), soon)
            self._kept[noted.name] = _Kept(
                held=held, user=noted.user, sure=False, confirmed=False, give_up_at=give_up_at
            )

    async def leader(self, name: str, *, ttl: float, take: bool) -> str | None:
        """Return the leader; take a free lease if `take`, and renew it from then on.

        If a lock or a command has the lease, here or elsewhere, there is no leader.
        """
        kept = self._kept.get(name)
        if kept is not None and kept.user is None and self._valid(kept):
            return kept.held.holder
        leases = await self.leases()
        if take and kept is None:
            held = await leases.take(name, ttl=ttl, use=Use.LEADER, over=True)
            if held is not None:
                self._keep(held, user=None)
                self._note(self._kept[name])
                self.log.info(f"took the lease {name}", kind=LineKind.LEASE)
                return held.holder
        return await leases.leader(name)

    async def lock(self, name: str, *, wait: float, user: LockUser) -> int:
        """Take a lock for a user, waiting for it; return its fence.

        Raises:
            BusyError: The lock was not free within `wait` seconds.
            StateError: It could not be written to the book, and was released.
            InvalidInputError: The text is not a lease name, this node has the lease already, or the
                user is not running.
        """
        kept = self._kept.get(name)
        if kept is not None and self._is_over(kept):
            await self._let_go(name)
        elif kept is not None:
            raise InvalidInputError(
                f"this node has the lease {name} already",
                hint=f"{kept.user} relies on it" if kept.user else "it leads by that name",
            )
        if not self.relies(user):
            raise InvalidInputError(
                f"no active run or process uses the lock {name}",
                hint="request it from the process that needs it",
            )
        leases = await self.leases()
        held = await leases.wait(name, ttl=LOCK_TTL, patience=wait, use=Use.LOCK)
        if held is None:
            raise BusyError(
                f"the lock {name} was not free within {wait:g} s",
                hint=await leases.obstacle(name, ttl=LOCK_TTL),
            )
        self._keep(held, user=user)
        try:
            self.book.note(_noted(self._kept[name]))
        except StateError:
            self._kept[name] = replace(self._kept[name], ending=True)
            raise
        self.log.info(f"took the lock {name} for {user}", kind=LineKind.LEASE)
        return held.fence

    async def unlock(self, name: str, *, user: LockUser) -> bool:
        """Release a lock; return whether this node held it until now.

        Returns True for a lock that this node never held.

        Raises:
            UnavailableError: The store is unreachable; the keeper tries again until the lock
                expires.
        """
        kept = self._kept.get(name)
        if kept is None or kept.user is None or not kept.user.is_same(user):
            return True
        return await self._let_go(name)

    async def keep(self, stop: asyncio.Event) -> None:
        """Renew the leases until `stop` is set; then release those without a user."""
        while not stop.is_set():
            await self.step()
            self._more.clear()
            # Most agents hold no lease: then there is nothing to wake for.
            await wait_first(stop, self._more, seconds=STEP if self._kept else None)
        await self._leave()

    async def step(self) -> None:
        """Renew due leases; release locks without a user; drop lost leases."""
        for name, kept in list(self._kept.items()):
            if self._is_over(kept):
                await self._end(name, kept)
            elif (
                not kept.sure
                or self.clock.monotonic() >= kept.held.until - kept.held.ttl * (1 - RENEW_AT)
                or await self._has_lost(kept.held)
            ):
                await self._renew(name)

    async def _has_lost(self, held: HeldLease) -> bool:
        """Return whether the store has lost a lease, so that it must be written at once."""
        try:
            return await (await self.leases()).is_lost(held)
        except UnavailableError:
            return False

    async def _leave(self) -> None:
        for name, kept in list(self._kept.items()):
            if kept.user is not None and not self._is_over(kept):
                self.log.info(
                    f"left {kept} to the next agent: {kept.user} relies on it", kind=LineKind.LEASE
                )
                continue
            try:
                await self._let_go(name)
            except UnavailableError as error:
                self.log.warning(f"{kept} expires by itself: {error}", kind=LineKind.LEASE)

    async def _end(self, name: str, kept: _Kept) -> None:
        """Release a lock without a user; if that fails, the next step tries again."""
        if not kept.ending:
            self.log.info(f"releasing {kept}: {kept.user} has ended", kind=LineKind.LEASE)
        try:
            await self._let_go(name)
        except UnavailableError as error:
            late = self.clock.monotonic() >= max(kept.held.until, kept.give_up_at)
            now = self._kept.get(name)
            if late and now is not None and now.turn is kept.turn:
                del self._kept[name]
                self.log.warning(f"{kept} expires by itself: {error}")

    async def _let_go(self, name: str) -> bool:
        """Release a lease; return whether this node held it to the end."""
        before = self._kept.get(name)
        if before is None:
            return True
        async with before.turn:
            kept = self._kept.get(name)
            if kept is None or kept.turn is not before.turn:
                return True  # another task has released it meanwhile
            self._strike(name)
            ending = self._kept[name] = replace(kept, ending=True, sure=False)
            leases = await self.leases()
            current: HeldLease | None = kept.held if kept.sure else await leases.find(kept.held)
            mine = current is not None and await leases.give_back(current)
            if self._kept.get(name) is ending:  # or a waiting task has taken it by now
                del self._kept[name]
            return mine

    async def _renew(self, name: str) -> None:
        before = self._kept.get(name)
        if before is None:
            return
        async with before.turn:
            kept = self._kept.get(name)
            if kept is None or kept.turn is not before.turn or kept.ending:
                return  # released meanwhile
            problem = "another node has it, or it has expired"
            try:
                leases = await self.leases()
                current: HeldLease | None = kept.held if kept.sure else await leases.find(kept.held)
                current = None if current is None else await leases.renew(current)
            except UnavailableError as error:
                if self.clock.monotonic() < kept.give_up_at:
                    if self._kept.get(name) is kept:  # it is unknown whether the write took place
                        self._kept[name] = replace(kept, sure=False)
                    return
                problem, current = str(error), None
            if current is not None:
                self._keep(current, user=kept.user, turn=kept.turn)
                self._note(self._kept[name])
                if not kept.confirmed:
                    relies = f" for {kept.user}" if kept.user else ""
                    self.log.info(f"resumed {kept}{relies}", kind=LineKind.LEASE)
                return
            self.log.warning(f"lost the lease {name}: {problem}", kind=LineKind.LEASE)
            if kept.user is not None:
                self.lost(kept.user)
            if self._kept.get(name) is kept:  # or a waiting task has taken it by now
                del self._kept[name]
                self._strike(name)

    def _keep(
        self, held: HeldLease, *, user: LockUser | None, turn: asyncio.Lock | None = None
    ) -> None:
        self._kept[held.name] = _Kept(
            held=held, user=user, give_up_at=_give_up_at(held), turn=turn or asyncio.Lock()
        )
        self._more.set()

    def _note(self, kept: _Kept) -> None:
        """Write a lease to the book; without that, only the next agent knows less."""
        try:
            self.book.note(_noted(kept))
        except StateError as error:
            self.log.warning(
                f"{kept} cannot be recorded for the next agent: {error}", kind=LineKind.LEASE
            )

    def _strike(self, name: str) -> None:
        try:
            self.book.strike(name)
        except StateError as error:
            self.log.warning(
                f"the next agent will look for the lease {name} again: {error}", kind=LineKind.LEASE
            )

    def _is_over(self, kept: _Kept) -> bool:
        """Return whether to release a lock: its user has ended."""
        return kept.ending or (kept.user is not None and not self.relies(kept.user))

    def _valid(self, kept: _Kept) -> bool:
        return self.clock.monotonic() < _give_up_at(kept.held)


def _give_up_at(held: HeldLease) -> float:
    return held.until - held.ttl * (1 - GIVE_UP_AT)


def _noted(kept: _Kept) -> LeaseRecord:
    held = kept.held
    return LeaseRecord(
        name=held.name, value=held.value, ttl=held.ttl, until=held.until, user=kept.user
    )


@dataclass(frozen=True, slots=True)
class LockUsers:
    """Runs and processes that use locks; `grace` is the seconds between TERM and KILL."""

    records: "Records"
    processes: ProcessTable
    log: Log
    _: KW_ONLY
    grace: float

    def go_on(self, user: "LockUser") -> bool:
        """Return whether a run, or else a process, still uses its lock.

        If a supervisor died, its run lasts as long as Puppet does. If the state is unknown, the run
        counts as running: the node keeps the lock.
        """
        try:
            status = self._status(user)
        except StateError as error:
            self.log.warning(f"keeping the locks of {user}: {error}", kind=LineKind.LEASE)
            return True
        if status is not None:
            return status.state is not RunState.FINISHED or self.records.orphaned(status)
        return user.process is not None and self.processes.alive(user.process)

    def end(self, user: "LockUser") -> None:
        """End the users of a lost lock, because another node may take the lock.

        A supervisor ends its Puppet. Without a supervisor, all descendants of the process get TERM,
        and KILL after the grace period.
        """
        self.log.warning(f"ending {user}: its lock was lost", kind=LineKind.LEASE)
        try:
            status = self._status(user)
        except StateError as error:
            self.log.warning(f"cannot find its supervisor: {error}", kind=LineKind.LEASE)
            status = None
        process = user.process
        if status is not None:
            supervisor = ProcessId.from_dict(status.supervisor)
            if self.processes.alive(supervisor):
                self.processes.signal([supervisor], signal.SIGTERM)
                return
            process = ProcessId.from_dict(status.puppet)
        if process is not None:
            self._end_family(process)

    def _end_family(self, process: "ProcessId") -> None:
        family = self.processes.family(process)
        self.processes.signal(family, signal.SIGTERM)

        def kill() -> None:
            later = [relative for item in family for relative in self.processes.family(item)]
            self.processes.signal([*family, *later], signal.SIGKILL)

        asyncio.get_running_loop().call_later(self.grace, kill)

    def _status(self, user: "LockUser") -> Status | None:
        """Return the status of the user's run; `None` without a record."""
        if user.run is None:
            return None
        try:
            return self.records.status(self.records.get(user.run))
        except InvalidInputError:
            return None
