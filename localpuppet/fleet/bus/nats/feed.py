"""The messages that the server republishes below a prefix, queued for a watch.

It bounds the queue, and decides when the watch must read the stored state.
"""

import asyncio

from localpuppet.fleet.bus.nats.api import NatsMessage
from localpuppet.fleet.bus.nats.link import Msg, NatsLink, Subscription
from localpuppet.fleet.bus.nats.stream import NatsStream

# Number of looks after which a watch sweeps expired values, if the server does not.
SWEEP = 60
# Seconds between two looks of a watch at the stored state: core NATS does not report lost messages.
# One timer for all watchers: it would be rearmed for each message otherwise.
LOOK = 60.0
# Limits of the queue of a watch; messages beyond them are read when there is room again.
BEHIND = 1000
BEHIND_BYTES = 4 * 1024 * 1024


class NatsFeed:
    """The messages republished below a prefix, between `async with` and its end.

    Args:
        stream: The stream.
        prefix: The prefix of the keys.
        largest: Maximum bytes of a reported value.
    """

    def __init__(self, stream: NatsStream, prefix: str, *, largest: int) -> None:
        self._stream = stream
        self._prefix = prefix
        self._largest = largest
        self._waiting = 0
        self._queue: asyncio.Queue[NatsMessage | None] = asyncio.Queue()
        # Whether the queue ends with a look, which finds all messages until then.
        self._full = False
        self._looks = 0
        self._timer: asyncio.TimerHandle
        self._link: NatsLink
        self._subscription: Subscription

    async def __aenter__(self) -> "NatsFeed":
        self._link = await self._stream.prepare()
        self._subscription = await self._link.subscribe(
            self._stream.live(self._prefix), self._on_message
        )
        self._link.listeners.add(self.look_now)
        self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        self._link.listeners.discard(self.look_now)
        await self._link.unsubscribe(self._subscription)

    @property
    def idle(self) -> bool:
        """Return whether no message waits."""
        return self._queue.empty()

    def check(self) -> None:
        """Check the subscription; conclusive after the server has answered a later request."""
        self._link.check(self._subscription)

    def look_now(self) -> None:
        """Make `next` return `None`, so that the watch reads the stored state."""
        self._queue.put_nowait(None)

    async def next(self) -> NatsMessage | None:
        """Return the next message; `None` if the watch must read the stored state."""
        self.check()
        message = await self._queue.get()
        if self._queue.empty():
            self._full = False
        if message is None:
            self.check()
            self._looks += 1
            if self._looks % SWEEP == 0:
                await self._stream.sweep(self._prefix)
        else:
            self._waiting -= len(message.entry.value)
        return message

    def _look(self) -> None:
        self.look_now()
        self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)

    def _on_message(self, message: Msg) -> None:
        if self._full:
            return  # the look at the end of the queue finds it: it is stored already
        try:
            received = self._stream.parse_message(message)
        except ValueError:
            self._queue.put_nowait(None)  # not a message of the stream: the stored state decides
            return
        size = len(received.entry.value)
        if size > self._largest:
            return
        self._full = self._queue.qsize() >= BEHIND or self._waiting + size > BEHIND_BYTES
        self._waiting += 0 if self._full else size
        self._queue.put_nowait(None if self._full else received)
