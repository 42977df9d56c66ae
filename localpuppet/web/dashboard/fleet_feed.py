"""Feeds the dashboard: reads presence and inventory, and writes the memory.

- If an agent runs on this machine, the dashboard only reads the agent's view; else it follows the
  inventory itself.
- No error here ends the dashboard: it logs the error and shows when the data were last updated. An
  outage of the bus is one line, whatever else fails because of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError, first_error
from localpuppet.base.formats.text import shortened
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_PRESENCE_ROLES, MAX_PRESENCE_TEXT
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.store_calls import Backoff, cancel_all, close, ours
from localpuppet.fleet.history.history_follower import HistoryBoard
from localpuppet.fleet.inventory.presence import listen
from localpuppet.fleet.inventory.view import View
from localpuppet.web.dashboard.fleet import Fleet
from localpuppet.web.dashboard.memory import DashboardStore, HistoryIntake

# Entries that are read in one go; others have their turn then.
TOGETHER = 50
# The part whose problems are outages of the bus.
BUS = "bus"
Store = Callable[[], Awaitable[KeyValue]]


class FeedIntervals(Value):
    """Seconds between two looks or writes."""

    # Between two writes of when the bus last answered, and after one that failed.
    write: float = 1.0
    gather: float = 0.05  # between two writes of changes: a kill -9 loses those since the last one
    view: float = 0.5
    names: float = 30.0
    agent: float = 5.0
    prune: float = 600.0
    # Until inventory and history are read, at most, although some nodes are not shown.
    first: float = 30.0


@dataclass(slots=True, eq=False)
class FleetFeeder:
    """Feeds a fleet, and writes changes to the memory.

    `follow` keeps the view up to date until an event is set; it takes what provides the bus.
    `follow_history` passes the history of all nodes to a board, without end.
    """

    fleet: Fleet
    memory: DashboardStore
    _: KW_ONLY
    connect: Store
    view: View
    follow: Callable[[Store, asyncio.Event], Awaitable[None]]
    agent_is_there: Callable[[], bool]
    log: Log
    follow_history: Callable[[HistoryBoard, Store], Awaitable[None]]
    intervals: FeedIntervals = FeedIntervals()
    _kv: KeyValue | None = field(default=None, init=False)
    _connected: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _revision: int = field(default=-1, init=False)
    _logged: dict[str, str] = field(default_factory=dict, init=False)

    async def run(self, leave: asyncio.Event) -> None:
        """Feed the fleet until `leave` is set, then write changes to the memory."""
        tasks = (
            *(self._listen, self.fleet.keep_up, self._follow),
            *(self._look, self._write, self._prune, self._follow_history),
        )
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(task()) for task in tasks]
            await leave.wait()
            await cancel_all(working)
        await self._write_once()
        self.memory.close()

    async def store(self) -> KeyValue:
        """Return the bus, connected; an unreachable one is an error."""
        if self._kv is None:
            raise UnavailableError(self.fleet.away or "is unreachable", where="bus")
        return self._kv

    async def connected_store(self) -> KeyValue:
        """Return the bus; wait while it is unreachable."""
        while self._kv is None:
            await self._connected.wait()
        return self._kv

    async def _listen(self) -> None:
        backoff = Backoff()
        while True:
            try:
                self._kv = await ours(self.connect())
                self._connected.set()
                backoff.reset()
                # A separate task: a group that failed leaves its task marked as cancelled.
                await ours(asyncio.create_task(listen(self._kv, self.fleet)))
            except* (UnavailableError, InvalidInputError) as errors:
                error = first_error(errors)
                self.fleet.lost(str(error))
                if BUS not in self._logged:  # further attempts fail in several ways
                    self._wrong(BUS, f"the bus is unreachable: {error}")
            finally:
                kv, self._kv = self._kv, None
                self._connected.clear()
                await close(kv, self.log)
            await asyncio.sleep(backoff.pause())

    async def _follow(self) -> None:
        """Keep the view up to date while no agent does."""
        await self._nodes_first()
        while True:
            if not self.agent_is_there():
                leave = asyncio.Event()
                following = asyncio.ensure_future(self.follow(self.connected_store, leave))
                try:
                    while not self.agent_is_there() and not following.done():
                        await asyncio.wait([following], timeout=self.intervals.agent)
                    leave.set()
                    await following
                finally:
                    following.cancel()
            await asyncio.sleep(self.intervals.agent)

    async def _follow_history(self) -> None:
        await self._nodes_first()
        fleet = self.fleet
        board = HistoryIntake(self.memory, fleet.changes.add, fleet.ran, fleet.miss_history)
        await self.follow_history(board, self.connected_store)

    async def _nodes_first(self) -> None:
        """Leave the processor to the presence of the nodes, so that the first view has all."""
        await wait_first(self.fleet.verified, seconds=self.intervals.first)

    async def _look(self) -> None:
        """Read the nodes and their roles from the view."""
        loop = asyncio.get_running_loop()
        looked = -self.intervals.names
        while True:
            try:
                revision = await asyncio.to_thread(lambda: self.view.revision)
                if revision != self._revision or loop.time() - looked >= self.intervals.names:
                    await self._take(revision)
                    looked = loop.time()
                self._well("view")
            except StateError as error:
                self._wrong("view", f"the inventory is unreadable: {error}")
            await asyncio.sleep(self.intervals.view)

    async def _take(self, revision: int) -> None:
        view = self.view
        new = sorted(await asyncio.to_thread(view.since, self._revision))
        all_ = await asyncio.to_thread(view.since, None)
        forgotten = await asyncio.to_thread(view.forgotten)
        for begin in range(0, len(new) or 1, TOGETHER):
            names = set(new[begin : begin + TOGETHER])
            roles = await asyncio.to_thread(_roles, view, names)
            self.fleet.listed(roles, all_=all_, forgotten=forgotten)
        self._revision = revision

    async def _write(self) -> None:
        while True:
            await wait_first(self.fleet.news, seconds=self.intervals.write)
            await self._write_once()
            if BUS in self._logged and not self.fleet.away:
                self._well(BUS)
                self.log.info("the bus is reachable again", kind=LineKind.BUS)
            # Changes that come together are written together.
            await asyncio.sleep(self.intervals.gather)

    async def _write_once(self) -> None:
        waiting = self.fleet.waiting()
        try:
            written = await asyncio.to_thread(self.fleet.write, waiting)
        except StateError as error:
            self.fleet.put_back(waiting, str(error))
            self._wrong("memory", f"the dashboard does not store results: {error}")
            await asyncio.sleep(self.intervals.write)
            return
        self.fleet.announce(written)
        self._well("memory")

    async def _prune(self) -> None:
        while True:
            try:
                more = await asyncio.to_thread(self.memory.prune)
            except StateError as error:
                self._wrong("memory", f"the dashboard does not store results: {error}")
                more = False
            await asyncio.sleep(self.intervals.write if more else self.intervals.prune)

    def _wrong(self, part: str, text: str) -> None:
        """Log a problem of a part once."""
        if self._logged.get(part) != text:
            self.log.warning(text, kind=LineKind.INVENTORY)
        self._logged[part] = text

    def _well(self, part: str) -> None:
        self._logged.pop(part, None)


def _roles(view: View, names: set[str]) -> dict[str, tuple[str, ...]]:
    return {
        str(node.node): tuple(
            shortened(role, MAX_PRESENCE_TEXT) for role in node.roles[:MAX_PRESENCE_ROLES]
        )
        for node in view.nodes(names)
    }
