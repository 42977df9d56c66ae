"""Requests and their replies on the bus: which keys, in which order.

Owns: that a reply cannot be missed, and who of many that ask at a time gets it. Refuses to know:
what the bytes say and who signed them (`requests.messages`).
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.bus.key_value import KeyValue, Listing, entries
from localpuppet.fleet.bus.layout import replies_of, replies_to

REPLY_TTL = 60.0  # whoever asked is watching
# Values that are kept for one request and not yet looked at; whoever writes more may not be heard.
MOST_UNREAD = 16


class Replies:
    """Hears the replies to one caller, between `async with` and its end.

    One watch serves all who ask meanwhile: a store has more work with a watch than with a request.
    After an outage the next request begins another one.

    Args:
        kv: The store.
        caller: Who asks: a part of the keys.
        node: The only one whose replies are wanted; `None` for all that the caller may ask.
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def ask(
        self, token: bytes, *, at: str, node: NodeName | SignerName, request: str, ttl: float
    ) -> AsyncGenerator[bytes, None]:
        """Put a request before a node, and yield what comes as its reply: to be checked.

        Args:
            token: The signed request.
            at: The key that it is put at.
            node: Who is asked.
            request: Its id.
            ttl: Seconds that it stays there.
        """
        key = replies_of(node, self._caller) + request
        unread = self._unread[key] = asyncio.Queue(MOST_UNREAD)
        try:
            if self._watching is None or self._watching.done():
                self._begun.clear()
                self._watching = asyncio.create_task(self._watch())
            await self._begun.wait()  # watching by now: the reply cannot be missed
            if not self._watching.done():
                await self._kv.put(at, token, ttl=ttl)
            while True:
                found = await unread.get()
                if isinstance(found, UnavailableError):
                    raise found
                yield found
        finally:
            del self._unread[key]

    async def _watch(self) -> None:
        """Hand out what comes; where that ends, tell all who wait."""
        problem = UnavailableError("the watch for replies has ended", where="bus")
        try:
            watching = self._kv.watch(self._prefix, parts=True)
            async with aclosing(watching) as changes:
                async for change in changes:
                    for entry in entries(change):
                        self._hand_out(entry.key, entry.value)
                    if not (isinstance(change, Listing) and change.more):
                        self._begun.set()
        except UnavailableError as error:
            problem = error
        finally:
            for key in [*self._unread]:
                self._hand_out(key, problem)
            self._begun.set()

    def _hand_out(self, key: str, found: bytes | UnavailableError) -> None:
        unread = self._unread.get(key)
        if unread is not None and not unread.full():
            unread.put_nowait(found)


async def reply(
    kv: KeyValue, token: bytes, *, caller: str, node: NodeName | SignerName, request: str
) -> None:
    """Put a node's reply where its caller looks; see `Replies.ask`.

    Raises:
        UnavailableError: The store cannot be reached.
    """
    await kv.put(replies_of(node, caller) + request, token, ttl=REPLY_TTL)
