"""Keep the view up to date with one watch of entries and one of tombstones.

- The view is current while both watches run with complete listings, and the bus answers.
- Messages that are in the view already, byte for byte, are not verified again. When the trust files
  change, everything is verified and listed again.
- Errors do not end the agent: they are logged, the view ages, and queries report that.
- A node whose entry took long waits with the next one, and only the newest counts then: no node can
  take more than a part of the time, or keep the entries of others waiting.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from localpuppet.base.errors import LocalpuppetError, StateError
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.machine.sqlite import DamagedError
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.bus import key_value
from localpuppet.fleet.bus.bus_limits import MAX_TOMBSTONE, MAX_VALUE
from localpuppet.fleet.bus.key_value import (
    Change,
    KeyListing,
    KeyValue,
    KeyValueEntry,
    RefusedError,
    revision_of,
)
from localpuppet.fleet.bus.layout import INVENTORY, TOMBSTONES
from localpuppet.fleet.bus.store_calls import log_failure, ours, unending
from localpuppet.fleet.inventory.admission import EntryAdmission, ReceivedEntry
from localpuppet.fleet.inventory.reading import UnlistedNodes, refuse_lost, unlisted_nodes
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View

# Changes that wait between the connection and the disk and are then processed together; a part of a
# listing of up to 1 MiB is one change.
BACKLOG = 4
# The rest of a node after an entry, as a multiple of the time that the entry took; shorter ones do
# not count, and a slow disk makes none longer.
REST = 9.0
LEAST_REST, LONGEST_REST = 1.0, 30.0


class Pauses(Value):
    """The waiting times of a follower, in seconds.

    Attributes:
        again: Before the first new attempt to reach the bus.
        longest: Before any later attempt, at most.
        not_allowed: Before a node without read access tries again.
        refused: Before the next attempt after a disk error.
        old: Between the last moment of a view and the beginning of the bus, at most, if the view
            has what the bus before had.
    """

    look: float = 2.0
    beat: float = 30.0
    settle: float = 10.0
    again: float = 1.0
    longest: float = 60.0
    not_allowed: float = 600.0
    refused: float = 30.0
    old: float = 600.0


PAUSES = Pauses()


class Companion(Protocol):
    """Stores what entries point to, beside the view."""

    def drop(self, node: str) -> None:
        """Remove what is stored of a node that left the view."""

    async def update(self, kv: KeyValue) -> bool:
        """Update the stored data to the view's entries; return whether it changed."""


class _AgainError(Exception):
    """The bus must be listed again."""


@dataclass(slots=True, eq=False)
class ViewFollower:
    """Keeps a view up to date.

    Attributes:
        trust: Returns a text that changes when the trust files change.
        probe: A readable key, to check that the bus answers.
        companion: Stores what entries point to.
        online: Returns what the nodes that are online publish about themselves, verified.
        changed: Called after the view may have changed.
    """

    view: View
    _: KW_ONLY
    store: Callable[[], Awaitable[KeyValue]]
    admission: EntryAdmission
    trust: Callable[[], str]
    probe: str
    companion: Companion
    online: Callable[[KeyValue], Awaitable[Mapping[str, Mapping[str, Any]]]]
    clock: Clock
    log: Log
    changed: Callable[[], None] = lambda: None
    pauses: Pauses = PAUSES
    _listed: set[str] = field(default_factory=set, init=False)
    _after: dict[str, int | None] = field(default_factory=dict, init=False)
    _born: float = field(default=0.0, init=False)
    _is_whole: bool = field(default=False, init=False)
    _logged: str = field(default="", init=False)
    _again: float = field(init=False)
    # Until when the next entry of a key waits, by the monotonic clock; the keys with one that does.
    _rests: dict[str, float] = field(default_factory=dict, init=False)
    _later: set[str] = field(default_factory=set, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self._again = self.pauses.again

    async def follow(self, leave: asyncio.Event) -> None:
        """Follow the bus until `leave` is set."""
        try:
            while not leave.is_set():
                pause = self._pause(await self._ended(leave))
                await wait_first(leave, seconds=pause)
        finally:
            self.view.close()

    async def _ended(self, leave: asyncio.Event) -> BaseException | None:
        """Run one session on the bus until it fails or `leave` is set; return its error."""
        following = asyncio.create_task(ours(self._session()))
        try:
            await wait_first(following, leave)
        finally:
            # Also on cancellation: the session ends with its follower.
            following.cancel()
            await asyncio.wait([following])
            error = None if following.cancelled() else following.exception()
        return error

    async def list_once(self) -> UnlistedNodes:
        """Update the view from one listing; return the online nodes without an entry.

        Raises:
            UnavailableError: Also if the bus has lost entries that are not back yet.
        """
        try:
            await asyncio.to_thread(self.view.restore)
            kv = await self.store()
            begun = self.clock.now().timestamp()
            await self._check_trust()
            await self.companion.update(kv)
            for prefix in (TOMBSTONES, INVENTORY):
                watch = kv.watch(prefix, largest=_largest(prefix), parts=True)
                async with aclosing(watch) as changes:
                    async for change in changes:
                        await self._take(kv, prefix, [change])
                        if isinstance(change, KeyListing) and not change.more:
                            break
            unlisted = await self.unlisted(kv)
            refuse_lost(unlisted)
            self.view.note(current=begun)
        finally:
            self.view.close()
        return unlisted

    async def unlisted(self, kv: KeyValue) -> UnlistedNodes:
        """Return the online nodes without an entry in the view."""
        online, born = await self.online(kv), await kv.born(INVENTORY)
        now = self.clock.now().timestamp()
        return unlisted_nodes(online, self.view.settled(), born=born, now=now)

    async def _check_lost(self, kv: KeyValue) -> None:
        """Refuse a view that has seen only what a bus had after it lost its data.

        A view that was current shortly before has the entries of that time.
        """
        current = self.view.current_until()
        if not self._is_whole and (current is None or current < self._born - self.pauses.old):
            refuse_lost(await self.unlisted(kv))
        self._is_whole = True

    def _pause(self, error: BaseException | None) -> float:
        """Return how long to wait after a session, and log why the session ended."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is None or isinstance(error, _AgainError):
            return 0.0
        if isinstance(error, DamagedError):
            self.log.warning(f"rebuilding the inventory: {error}", kind=LineKind.INVENTORY)
            return self._rebuilt()
        if not isinstance(error, LocalpuppetError):
            raise error
        pause = self.pauses.refused if isinstance(error, StateError) else self._again
        self._again = min(2 * self._again, self.pauses.longest)
        if isinstance(error, RefusedError):
            pause = self.pauses.not_allowed
        if str(error) != self._logged:
            log_failure(self.log, "the inventory is not current", error)
        self._logged = str(error)
        return pause

    def _rebuilt(self) -> float:
        self._after.clear()
        try:
            self.view.rebuild()
        except StateError as error:
            self.log.warning(f"the inventory stays damaged: {error}", kind=LineKind.INVENTORY)
            return self.pauses.refused
        return 0.0

    async def _session(self) -> None:
        await asyncio.to_thread(self.view.restore)
        kv = await self.store()
        born = await kv.born(INVENTORY)
        if born != self._born:  # its revisions say nothing about those of the store before
            self._born = born
            self._is_whole = False
            self._after.clear()
        self._listed.clear()
        await self._check_trust()
        await self.companion.update(kv)
        async with asyncio.TaskGroup() as group:
            for prefix in (TOMBSTONES, INVENTORY):
                queue: asyncio.Queue[Change] = asyncio.Queue(BACKLOG)
                group.create_task(unending(self._watch(kv, prefix, queue)))
                group.create_task(unending(self._hear(kv, prefix, queue)))
            group.create_task(unending(self._catch_up(kv)))
            group.create_task(unending(self._beat(kv)))
            group.create_task(unending(self._look()))

    async def _watch(self, kv: KeyValue, prefix: str, queue: asyncio.Queue[Change]) -> None:
        after = self._after.get(prefix)
        if after is not None:
            # A resumed watch sends missed changes without marking the last one.
            loop = asyncio.get_running_loop()
            settled = loop.call_later(self.pauses.settle, self._listed.add, prefix)
        following = kv.watch(prefix, after=after, largest=_largest(prefix), parts=True)
        try:
            async with aclosing(following) as changes:
                async for change in changes:
                    await queue.put(change)
        finally:
            if after is not None:
                settled.cancel()

    async def _hear(self, kv: KeyValue, prefix: str, queue: asyncio.Queue[Change]) -> None:
        while True:
            changes = [await queue.get()]
            # Each part of a listing alone: its entries take ten times as much memory when unpacked.
            while not queue.empty() and not isinstance(changes[-1], KeyListing):
                changes.append(queue.get_nowait())
            await self._take(kv, prefix, changes)

    async def _take(self, kv: KeyValue, prefix: str, changes: Sequence[Change]) -> None:
        """Pass changes to the view, in a thread because the event loop must not block."""
        entries = {entry.key: entry for change in changes for entry in key_value.entries(change)}
        if prefix == INVENTORY:
            async with self._turn:
                await self._take_in_turn(kv, entries)
        else:
            await asyncio.to_thread(self._take_tombstones, list(entries.values()))
            await self.companion.update(kv)
        self.changed()
        last = changes[-1]
        if isinstance(last, KeyListing) and last.more:
            return
        self._after[prefix] = revision_of(last)
        # A change may have arrived right after the listing, and was processed with it.
        if any(isinstance(change, KeyListing) and not change.more for change in changes):
            self._listed.add(prefix)
            if prefix == INVENTORY:
                self.view.note(revision=revision_of(last))

    async def _take_in_turn(self, kv: KeyValue, entries: Mapping[str, KeyValueEntry]) -> None:
        """Take the entries of nodes that do not rest."""
        begun = self.clock.monotonic()
        self._later |= {key for key in entries if self._rests.get(key, begun) > begun}
        ready = [entry for key, entry in entries.items() if key not in self._later]
        await asyncio.to_thread(self._take_entries, ready)
        await self.companion.update(kv)
        ended = self.clock.monotonic()
        each = REST * (ended - begun) / (sum(len(entry.value) for entry in ready) or 1)
        for entry in ready:
            rest = each * len(entry.value)
            if rest > LEAST_REST:
                self._rests[entry.key] = ended + min(rest, LONGEST_REST)

    async def _catch_up(self, kv: KeyValue) -> None:
        """Take the newest entries of nodes that rested."""
        while True:
            await asyncio.sleep(self.pauses.look)
            now = self.clock.monotonic()
            self._rests = {key: end for key, end in self._rests.items() if end > now}
            for key in self._later - self._rests.keys():
                async with self._turn:
                    entry = await kv.get(key)
                    self._later.discard(key)
                    await self._take_in_turn(kv, {} if entry is None else {key: entry})
                self.changed()

    def _take_entries(self, entries: Sequence[KeyValueEntry]) -> None:
        named = {entry.key.removeprefix(INVENTORY): entry for entry in entries}
        unknown = self.view.unknown({node: item.value for node, item in named.items()})
        tokens = {node: named[node].value for node in sorted(unknown)}
        self.view.take(
            (
                ReceivedEntry(
                    node=node,
                    token=tokens[node],
                    found=found if isinstance(found, str) else EntryRows.of(found),
                    revision=named[node].revision,
                )
                for node, found in self.admission.entries(tokens)
            ),
            revision=max((entry.revision for entry in entries), default=None),
        )

    def _take_tombstones(self, entries: Sequence[KeyValueEntry]) -> None:
        for entry in entries:
            node = entry.key.removeprefix(TOMBSTONES)
            tombstone = self.admission.tombstone(node, entry.value)
            if isinstance(tombstone, str):
                self.log.warning(f"{node} is not forgotten: {tombstone}", kind=LineKind.STRANGER)
            elif self.view.forget(tombstone[0], by=tombstone[1]):
                self.companion.drop(node)
                self.log.info(f"{node} was forgotten by {tombstone[1]}", kind=LineKind.INVENTORY)

    async def _beat(self, kv: KeyValue) -> None:
        """Record how long the view is current: the watches run, and the bus answers."""
        while True:
            begun = self.clock.now().timestamp()
            await kv.get(self.probe)
            if await self.companion.update(kv):
                self.changed()
            if self._listed >= {TOMBSTONES, INVENTORY}:
                await self._check_lost(kv)
                self.view.note(current=begun)
                self._logged, self._again = "", self.pauses.again
                await asyncio.sleep(self.pauses.beat)
            else:
                await asyncio.sleep(min(self.pauses.again, self.pauses.beat))

    async def _look(self) -> None:
        """Restart the session when the trust files have changed."""
        while True:
            await asyncio.sleep(self.pauses.look)
            if self.trust() != self.view.trust:
                self._after.clear()
                raise _AgainError

    async def _check_trust(self) -> None:
        """Remove entries that are no longer trusted, if the trust files have changed."""
        trust = self.trust()
        if trust != self.view.trust:
            await asyncio.to_thread(self._verify_all)
            self.view.note(trust=trust)
            self._after.clear()
            self.changed()

    def _verify_all(self) -> None:
        for node, token in self.view.tokens():
            problem = self.admission.distrust(node, token)
            if problem is not None:
                self.view.distrust(node, problem)
                self.companion.drop(node)
                self.log.warning(
                    f"{node} is out of the inventory: {problem}", kind=LineKind.INVENTORY
                )


def _largest(prefix: str) -> int:
    return MAX_VALUE if prefix == INVENTORY else MAX_TOMBSTONE
