"""Give clients turns to run a query: some at once, the others in order, each client in rotation.

- A client with many requests delays its own ones: the next turn belongs to the next client.
"""

import asyncio
from collections import Counter, deque
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
    running_of_one: int = 2
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
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # The number of the last turn of each client that has a query.
        self._last: dict[str, int] = {}
        self._turns = 0

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
            else:
                self._leave(client, ready)
            self._forget(client)
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

    def _forget(self, client: str) -> None:
        if not self._running[client]:
            del self._running[client]
            if client not in self._waiting:
                self._last.pop(client, None)

    def _next(self) -> None:
        """Give free turns to the clients with the fewest, and whose last turn is the oldest."""
        limits = self._limits
        while self._running.total() < limits.running:
            free = [name for name in self._waiting if self._running[name] < limits.running_of_one]
            if not free:
                return
            client = min(free, key=lambda item: (self._running[item], self._last.get(item, 0)))
            ready = self._waiting[client].popleft()
            self._leave(client, ready)
            if not ready.cancelled():
                self._turns += 1
                self._last[client] = self._turns
                self._running[client] += 1
                ready.set_result(None)
