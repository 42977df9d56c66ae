"""Give clients turns to run a query: some at once, the others in order, each client in rotation.

- A client with many requests delays its own ones: the next turn belongs to the next client.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from localpuppet.base.errors import BusyError


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Limits of queries.

    Attributes:
        running: Queries at once.
        running_of_one: Queries of one client at once.
        waiting: Queries that wait.
        waiting_of_one: Queries of one client that wait.
    """

    running: int = 4
    running_of_one: int = 3
    waiting: int = 400
    waiting_of_one: int = 200


class Turns:
    """Decides which query runs next.

    Args:
        limits: The limits.
    """

    def __init__(self, limits: TurnLimits = TurnLimits()) -> None:
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncGenerator[None, None]:
        """Wait for a turn of a client, and hold it.

        Raises:
            BusyError: Too many queries wait already.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enter(client, ready)
        try:
            self._next()
            await ready
            yield
        finally:
            if ready.done() and not ready.cancelled():
                self._running[client] -= 1
                self._running += Counter()  # without clients that have no query
            else:
                self._leave(client, ready)
            self._next()

    def _enter(self, client: str, ready: "asyncio.Future[None]") -> None:
        limits, own = self._limits, self._waiting.get(client, ())
        total = sum(map(len, self._waiting.values()))
        if len(own) >= limits.waiting_of_one or total >= limits.waiting:
            raise BusyError(
                f"{total} queries are waiting already, {len(own)} of them yours",
                hint="send fewer queries at once",
            )
        self._waiting.setdefault(client, deque()).append(ready)

    def _leave(self, client: str, ready: "asyncio.Future[None]") -> None:
        own = self._waiting.get(client)
        if own is not None and ready in own:
            own.remove(ready)
        if not own:
            self._waiting.pop(client, None)

    def _next(self) -> None:
        """Give free turns to waiting clients, the one that waits longest for a turn first."""
        while self._running.total() < self._limits.running:
            client = next(
                (one for one in self._waiting if self._running[one] < self._limits.running_of_one),
                None,
            )
            if client is None:
                return
            ready = self._waiting[client].popleft()
            self._waiting.move_to_end(client)
            self._leave(client, ready)
            if not ready.cancelled():
                self._running[client] += 1
                ready.set_result(None)
