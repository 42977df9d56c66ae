"""nats-py's client, hardened against servers and other clients.

It overrides some steps of the library, and has every private member that localpuppet uses: a test
names those that another version lacks.

- A message whose subject or headers are not text is a message, and does not end the connection: the
  server stores such bytes from any client that may write a key, and sends them to every client that
  lists it.
- If TLS is required, a server without TLS gets no data.
- A lost connection ends at once, without waiting for the peer.
- If a server sends a message or line above the bus's limits, the client disconnects before reading
  it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import ProtocolError
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from localpuppet.fleet.bus.bus_limits import MAX_NATS_LINE, MAX_NATS_MESSAGE
from localpuppet.fleet.bus.servers import read_little


class _BoundedParser(Parser):
    """A parser with a size limit: the library's waits for any size that the server announces."""

    async def parse(self, data: bytes = b"") -> None:
        try:
            await super().parse(data)
        except RecursionError as error:
            raise ProtocolError("nats: the server's description is nested too deep") from error
        in_message = self.state == AWAITING_MSG_PAYLOAD
        size = self.needed if in_message else len(self.buf)
        if size > (MAX_NATS_MESSAGE if in_message else MAX_NATS_LINE):
            self.reset()
            raise ProtocolError(f"nats: the server sends {size} bytes at once")


class TolerantClient(Client):
    """Keeps undecodable subjects unchanged; localpuppet's keys never contain such bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _BoundedParser(self)
        self._takers: dict[int, Callable[[Msg], None]] = {}

    @property
    def server_version(self) -> str:
        """Return the version that the server reports; empty without one."""
        return str(self._server_info.get("version", ""))

    def read_little(self) -> None:
        """Use a small read buffer; see `servers.read_little`."""
        read_little(self._socket())

    def _socket(self) -> asyncio.WriteTransport | None:
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        return None if writer is None else writer.transport

    async def hear(self, subject: str, take: Callable[[Msg], None]) -> Subscription:
        """Subscribe; `take` gets each message at once, before the next one is read.

        It saves the queue and the task that the library has for each subscription.
        """
        number = self._sid + 1
        self._takers[number] = take
        subscription: Subscription = await self.subscribe(subject, cb=_nothing)
        if subscription._id != number:
            raise AssertionError("nats-py numbers its subscriptions in another way")
        return subscription

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._takers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        take = self._takers.get(sid)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            take(
                self._build_message(sid, subject, reply, data, await self._process_headers(headers))
            )

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Parse header lines; the library checks each byte of a name: four times the time."""
        parsed = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                parsed[name] = value.strip()
        return parsed

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            parsed: dict[str, str] | None = await super()._process_headers(headers)
        except (UnicodeDecodeError, IndexError):
            return None
        return parsed

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return self.msg_class(
            subject=subject.decode("utf-8", "surrogateescape"),
            reply=reply.decode("utf-8", "surrogateescape"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if type(info.get("max_payload", 0)) is not int:
            raise NatsError("the server does not speak the NATS protocol")
        info.pop("connect_urls", None)  # kept by the library for reconnecting, without a limit
        await super()._process_info(info, initial_connection)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Close at once: the library would flush to a dead peer before it reports the loss.

        Unsent messages get no answer, so their senders learn that the connection is lost.
        """
        if self.is_closed:
            return
        self._pending = []
        self._pending_data_size = 0
        transport = self._socket()
        if transport is not None:
            transport.abort()
        # Senders that wait for a flush would wait for a task that ends here.
        while self._flush_queue is not None and not self._flush_queue.empty():
            sent = self._flush_queue.get_nowait()
            if not sent.done():
                sent.set_result(None)
        await super()._close(status, do_cbs)


async def _nothing(_message: Msg) -> None:
    """Ignore a message: the library requires a callback."""


class TlsClient(TolerantClient):
    """Requires TLS: nats-py does without if the first line of a server, in clear text, says so."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not info.get("tls_required"):
            raise NatsError("the server does not support TLS: disconnected before login")
        await super()._process_info(info, initial_connection)
