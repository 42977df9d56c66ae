"""The cost of a client of etcd or NATS without localpuppet: the peer of `triggers.py`.

A client does the minimum for the same guarantees: one watch (etcd) or one subscription (NATS) for
the key of the receiver. The sender has 64 pending writes, each with a ttl and acknowledged once it
is on the server's disk. On etcd, it uses gRPC through the same library, and one lease for all
values of a burst. On NATS, the receiver subscribes to the subject itself, so that it may receive a
message before it is stored; the stream stores the message for offline receivers.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from grpclib.client import Channel
from grpclib.const import Cardinality
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StorageType, StreamConfig

from localpuppet.fleet.bus import etcd_messages
from localpuppet.fleet.bus.etcd_calls import _Codec

AT_ONCE = 64
TTL = 181
Heard = Callable[[str], None]


class Bare(Protocol):
    """A client."""

    async def prepare(self) -> None:
        """Prepare the store for messages."""
        ...

    async def listen(self, node: str, heard: Heard) -> None:
        """Call `heard` for every message to a node, until cancelled."""
        ...

    async def send(self, nodes: Sequence[str], value: bytes) -> None:
        """Send a message to each node; it is on the server's disk afterwards."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


async def open_bare(engine: str, url: str) -> Bare:
    """Return a client with a separate connection."""
    if engine == "etcd":
        parts = urlsplit(url)
        return BareEtcd(Channel(parts.hostname, parts.port, codec=_Codec()))
    client = Client()
    await client.connect(url, allow_reconnect=False)
    return BareNats(client)


class BareEtcd:
    """etcd: watch and put.

    Args:
        channel: A connection.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def prepare(self) -> None:
        """Do nothing, because etcd needs no preparation."""

    async def listen(self, node: str, heard: Heard) -> None:
        """Call `heard` for every message to a node, until cancelled."""
        request = etcd_messages.watch_request(f"/bare/{node}/", start=0)
        async with self._channel.request(
            etcd_messages.WATCH, Cardinality.STREAM_STREAM, bytes, bytes
        ) as stream:
            await stream.send_message(request)
            while (answer := await stream.recv_message()) is not None:
                for _ in etcd_messages.read_watched(answer).events:
                    heard(node)

    async def send(self, nodes: Sequence[str], value: bytes) -> None:
        """Send a message to each node; it is on the server's disk afterwards."""
        lease = etcd_messages.read_lease(
            await self._call(etcd_messages.GRANT, etcd_messages.grant_request(TTL))
        )
        for start in range(0, len(nodes), AT_ONCE):
            await asyncio.gather(
                *(
                    self._call(
                        etcd_messages.PUT,
                        etcd_messages.put_request(f"/bare/{node}/sender", value, lease),
                    )
                    for node in nodes[start : start + AT_ONCE]
                )
            )

    async def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    async def _call(self, method: str, request: bytes) -> bytes:
        async with self._channel.request(method, Cardinality.UNARY_UNARY, bytes, bytes) as stream:
            await stream.send_message(request, end=True)
            answer = await stream.recv_message()
        assert answer is not None
        return answer


class BareNats:
    """NATS: subscribe, and publish to a stream.

    Args:
        client: A connection.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stream = client.jetstream()

    async def prepare(self) -> None:
        """Prepare the store for messages."""
        await self._stream.add_stream(
            StreamConfig(
                name="bare",
                subjects=["bare.>"],
                storage=StorageType.FILE,
                max_msgs_per_subject=1,
            )
        )

    async def listen(self, node: str, heard: Heard) -> None:
        """Call `heard` for every message to a node, until cancelled."""

        async def take(_message: Msg) -> None:
            heard(node)

        await self._client.subscribe(_subject(node), cb=take)
        await asyncio.Event().wait()

    async def send(self, nodes: Sequence[str], value: bytes) -> None:
        """Send a message to each node; it is on the server's disk afterwards."""
        for start in range(0, len(nodes), AT_ONCE):
            await asyncio.gather(
                *(
                    self._stream.publish(_subject(node), value)
                    for node in nodes[start : start + AT_ONCE]
                )
            )

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def _subject(node: str) -> str:
    return f"bare.{node.replace('.', '~')}.sender"
