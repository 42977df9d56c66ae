"""A request and its reply on the bus: which keys, in which order.

Refuses to know: what the bytes say and who signed them (`requests.messages`).
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from localpuppet.bus.key_value import KeyValue, entries
from localpuppet.bus.layout import replies_of, requests_of
from localpuppet.formats.names import NodeName

REPLY_TTL = 60.0  # whoever asked is watching


async def ask(
    kv: KeyValue, token: bytes, *, caller: str, node: NodeName, request: str, ttl: float
) -> AsyncGenerator[bytes, None]:
    """Put a request before a node, and yield what comes as its reply: to be checked by the caller.

    Args:
        kv: The store.
        token: The signed request.
        caller: Who asks: the last part of a key.
        node: Who is asked.
        request: Its id.
        ttl: Seconds that it stays there.

    Raises:
        UnavailableError: The store cannot be asked.
    """
    replies = replies_of(node, caller)
    async with aclosing(kv.watch(replies)) as changes:
        asked = False
        async for change in changes:
            for entry in entries(change):
                if entry.key == replies + request:
                    yield entry.value
            if not asked:  # watching by now: the reply cannot be missed
                await kv.put(requests_of(caller, node) + request, token, ttl=ttl)
                asked = True


async def reply(kv: KeyValue, token: bytes, *, caller: str, node: NodeName, request: str) -> None:
    """Put a node's reply where its caller looks; see `ask`.

    Raises:
        UnavailableError: The store cannot be reached.
    """
    await kv.put(replies_of(node, caller) + request, token, ttl=REPLY_TTL)
