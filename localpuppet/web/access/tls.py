"""TLS before HTTP: each connection must show a certificate of the CA in time, within limits.

An address has its own limit, so that one machine keeps no other out.

- HTTP receives no byte of a connection without a certificate of the CA and its key.
- A client without one gets always the same message; its request is not parsed.
"""

import asyncio
import ipaddress
import ssl
from collections import Counter
from collections.abc import Callable
from typing import cast

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.value import Value
from localpuppet.web.access.http_limits import MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE

# Of IPv6 a network of this many bits is one address: a machine has as many as it likes in it.
SITE_BITS = 64


class ConnectionTable:
    """The open connections."""

    def __init__(
        self, *, most: int = MAX_CONNECTIONS, of_one: int = MAX_CONNECTIONS_OF_ONE
    ) -> None:
        self._most = most
        self._of_one = of_one
        self._there: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Return the number of connections."""
        return self._there.total()

    def enter(self, address: str) -> str | None:
        """Count a connection; return the argument for `leave`, or `None` if it is rejected."""
        peer = _one(address)
        if self._there[peer] >= self._of_one or self.total >= self._most:
            return None
        self._there[peer] += 1
        return peer

    def leave(self, peer: str) -> None:
        """Remove an ended connection from the counts."""
        self._there[peer] -= 1
        if not self._there[peer]:
            del self._there[peer]


def _one(address: str) -> str:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, SITE_BITS), strict=False))
    return str(ip)


# Seconds in which a handshake is over, and in which the other side says goodbye.
PATIENCE = 10.0
GOODBYE = 2.0
_WORDS = b"""\
This page is for people with a certificate of this site, and your browser has shown none.

Import your certificate and its key into the browser. If it has asked for one already and you
sent none, end the browser and begin again: it asks once. Whoever runs the page has the list of
those who may look.
"""
NO_CERTIFICATE = (
    b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"x-content-type-options: nosniff\r\ncache-control: no-store\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_WORDS), _WORDS)
)


class Tls(Value):
    """The TLS settings of connections.

    `context` returns a server context with the current files, which requests a client certificate.
    `patience` is for a handshake, and for the request of a client without a certificate.
    """

    context: Callable[[], ssl.SSLContext]
    crowd: ConnectionTable
    log: Log
    names_clients: bool = True
    patience: float = PATIENCE


class Handshake(asyncio.Protocol):
    """A connection: first the handshake, then HTTP."""

    def __init__(self, tls: Tls, make: Callable[[], asyncio.Protocol]) -> None:
        self._tls = tls
        self._make = make
        self._inner: asyncio.Protocol | None = None
        self._stranger: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None
        self._early = b""
        self._gone = False
        self._one: str | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, or close an excess connection."""
        plain = cast("asyncio.Transport", transport)
        plain.pause_reading()
        peer = plain.get_extra_info("peername")  # none where it has gone already
        self._one = self._tls.crowd.enter(peer[0]) if peer else None
        if self._one is None:
            plain.abort()
            return
        # The loop keeps only weak references to tasks.
        self._task = asyncio.get_running_loop().create_task(self._shake(plain))

    async def _shake(self, plain: asyncio.Transport) -> None:
        if self._gone:
            return
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain,
                self,
                self._tls.context(),
                server_side=True,
                ssl_handshake_timeout=self._tls.patience,
                ssl_shutdown_timeout=GOODBYE,
            )
        except ssl.SSLError as error:  # a certificate of another CA, no TLS at all
            self._refused(getattr(error, "verify_message", "") or error.reason or "not TLS")
            self._let_go(plain)
        except OSError:  # it has gone, or no time is left
            self._let_go(plain)
        except LocalpuppetError as error:
            line = f"rejects all connections: {error}"
            self._tls.log.warning(line, kind=LineKind.STRANGER)
            self._let_go(plain)
        else:
            self._speak(secured)

    def _refused(self, why: str) -> None:
        line = f"refused a connection from {self._one}: {why}"
        self._tls.log.info(line, kind=LineKind.STRANGER)

    def _let_go(self, plain: asyncio.Transport) -> None:
        plain.abort()
        self._leave()

    def _leave(self) -> None:
        if self._one is not None:
            self._tls.crowd.leave(self._one)
        self._one = None

    def _speak(self, secured: asyncio.Transport | None) -> None:
        """Pass the connection to HTTP, with bytes that arrived with the end of the handshake."""
        if secured is None or self._gone:
            self._leave()  # gone during the handshake: asyncio does not report the loss
            return
        certificate = secured.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if self._tls.names_clients and not certificate:
            self._turn_away(secured)
            return
        self._inner = self._make()
        self._inner.connection_made(secured)
        if self._early:
            self._inner.data_received(self._early)
        self._early = b""

    def _turn_away(self, secured: asyncio.Transport) -> None:
        """Send the message for clients without a certificate after the first bytes of a request."""
        self._refused("no certificate")
        self._stranger = secured
        if self._early:
            self._answer()
        else:
            self._late = asyncio.get_running_loop().call_later(self._tls.patience, secured.abort)

    def _answer(self) -> None:
        if self._stranger is not None and not self._stranger.is_closing():
            self._stranger.write(NO_CERTIFICATE)
            self._stranger.close()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if self._stranger is not None:
            self._answer()
        elif self._inner is None:
            self._early += data
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Close the connection: TLS has no half of one."""
        return None

    def pause_writing(self) -> None:
        """Pass on that the client reads too slowly."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client has read."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection has ended."""
        self._gone = True
        if self._late is not None:
            self._late.cancel()
        self._leave()
        if self._inner is not None:
            self._inner.connection_lost(exc)
