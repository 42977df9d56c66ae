"""Exchange requests and replies through keys of the bus.

- The watch for replies begins before the request is written, so no reply is missed.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Self

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.bus.key_value import KeyListing, KeyValue, entries
from localpuppet.fleet.bus.layout import replies_of, replies_to

REPLY_TTL = 60.0  # the caller is watching
# Unread values that are kept per request; further ones are dropped.
MOST_UNREAD = 16


class Replies:
    """Receives the replies to one caller, within `async with`.

    All requests share one watch, which costs the store more than a request. After an outage the
    next request starts a new watch.

    Args:
        kv: The store.
        caller: The caller, as a part of the keys.
        node: Receive the replies of this node only; `None` for all nodes.
    """

    def __init__(
        self, kv: KeyValue, caller: str, node: NodeName | SignerName | None = None
    ) -> None:
        self._kv = kv
        self._caller = caller
        self._prefix = replies_to(caller) if node is None else replies_of(node, caller)
        self._unread: dict[str, asyncio.Queue[bytes | UnavailableError]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def ask(
        self, token: bytes, *, at: str, node: NodeName | SignerName, request: str, ttl: float
    ) -> AsyncGenerator[bytes, None]:
        """Send a request to a node and yield its replies, which are not verified yet.

        Args:
            token: The signed request.
            at: The key of the request.
            node: The receiver.
            request: The id of the request.
            ttl: Seconds until the request expires on the bus.
        """
        key = replies_of(node, self._caller) + request
        unread = self._unread[key] = asyncio.Queue(MOST_UNREAD)
        try:
            if self._watching is None or self._watching.done():
                self._begun.clear()
                self._watching = asyncio.create_task(self._watch())
            await self._begun.wait()  # the watch is active: the reply cannot be missed
            if not self._watching.done():
                await self._kv.put(at, token, ttl=ttl)
            while True:
                reply_or_error = await unread.get()
                if isinstance(reply_or_error, UnavailableError):
                    raise reply_or_error
                yield reply_or_error
        finally:
            del self._unread[key]

    async def _watch(self) -> None:
        """Distribute replies; when the watch ends, report that to all waiting callers."""
        problem = UnavailableError("the watch for replies has ended", where="bus")
        try:
            watching = self._kv.watch(self._prefix, parts=True)
            async with aclosing(watching) as changes:
                async for change in changes:
                    for entry in entries(change):
                        self._hand_out(entry.key, entry.value)
                    if not (isinstance(change, KeyListing) and change.more):
                        self._begun.set()
        except UnavailableError as error:
            problem = error
        finally:
            for key in [*self._unread]:
                self._hand_out(key, problem)
            self._begun.set()

    def _hand_out(self, key: str, reply_or_error: bytes | UnavailableError) -> None:
        unread = self._unread.get(key)
        if unread is not None and not unread.full():
            unread.put_nowait(reply_or_error)


async def reply(
    kv: KeyValue, token: bytes, *, caller: str, node: NodeName | SignerName, request: str
) -> None:
    """Write a node's reply to the key that its caller watches; see `Replies.ask`."""
    await kv.put(replies_of(node, caller) + request, token, ttl=REPLY_TTL)
