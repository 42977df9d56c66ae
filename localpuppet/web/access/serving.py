"""The HTTP server of the dashboard and the API: sockets, TLS, the application, and an orderly end.

- A client that sends nothing, or byte by byte, or does not read its answer, is disconnected after
  some seconds (`ConnectionLimits`), because connections are limited and anyone can open some.
- Over TLS, each connection must show a certificate of the CA in time, within limits. An address has
  its own limit, so that one machine keeps no other out.
- HTTP receives no byte of a connection without a certificate of the CA and its key. A client
  without one gets always the same message; its request is not parsed.
"""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.web.access.http_limits import MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE, MAX_HEAD
from localpuppet.web.access.rules import CERTIFICATE, Ends

BACKLOG = 128
# Ports to try if any will do: one may be taken on the other address.
TRIES = 8
LOCALHOST = ("127.0.0.1", "::1")
# Errors of an unavailable address: a machine without IPv6, or without IPv4.
_NOT_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
# Seconds of connections that end with us.
GRACE = 2


class ListenAddress(Value):
    """The address and port of the dashboard or the API; port 0 is any free one."""

    address: str
    port: int
    option: str = "--listen"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_localhost(self) -> bool:
        """Whether `localhost` and names below it resolve to the address."""
        return self.address in LOCALHOST

    @classmethod
    def parse(cls, text: str, *, option: str = "--listen") -> "ListenAddress":
        """Parse `127.0.0.1:8141`, `[::1]:8141`, `localhost:0` or `0.0.0.0:8443`."""
        host, _, port = text.rpartition(":")
        host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
        if not (host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise InvalidInputError(
                "is not an address and a port", where=option, hint="write 127.0.0.1:8141"
            )
        try:
            ipaddress.ip_address(host)
        except ValueError as error:
            raise InvalidInputError(
                f"{host[:60]!r} is not an IP address of this machine",
                where=option,
                hint="write 127.0.0.1:8141, or 0.0.0.0:8443 for people with certificates",
            ) from error
        return cls(address=host, port=int(port), option=option)


@contextmanager
def bound(place: ListenAddress) -> Iterator[list[socket.socket]]:
    """Yield listening sockets on one port, the place's address first; none is served yet."""
    with ExitStack() as opened:
        try:
            sockets = _both(place) if place.is_localhost else [_listening(place)]
        except OSError as error:
            raise StateError(
                f"cannot listen: {error.strerror}",
                where=f"{place.address}:{place.port}",
                hint=f"another port: {place.option} {place.address}:0",
            ) from error
        for listening in sockets:
            opened.enter_context(listening)
        yield sockets


def _both(place: ListenAddress) -> list[socket.socket]:
    for left in reversed(range(1 if place.port else TRIES)):
        first = _listening(place)
        try:
            return [first, *_beside(place, first)]
        except OSError:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _beside(place: ListenAddress, first: socket.socket) -> list[socket.socket]:
    """Return a socket at the other address of `localhost`, unless listening there is impossible."""
    (other,) = (address for address in LOCALHOST if address != place.address)
    try:
        return [_listening(ListenAddress(address=other, port=first.getsockname()[1]))]
    except OSError as error:
        if error.errno in _NOT_THERE:
            return []
        first.close()
        raise


def _listening(place: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    # Named: of sockets without it asyncio does not know that they are TCP, and an answer's second
    # packet would wait 40 ms for the first one's receipt.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((place.address, place.port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class ConnectionLimits(Value):
    most: int = MAX_CONNECTIONS
    head: float = 10.0  # seconds for the head of a request, from the connection or its first byte
    idle: int = 10  # seconds until the next request, after an answer
    reading: float = 30.0  # seconds in which a client must read what fills its buffer
    strangers: int = 32  # maximum number of connections of clients without access; see `serve`


PATIENCE = ConnectionLimits()


class _Impatient(H11Protocol):
    """HTTP that closes excess connections, and limits the time for the head of a request.

    uvicorn only answers excess connections, and has that time limit only after a request.
    """

    def __init__(
        self,
        patience: ConnectionLimits,
        knows: Callable[[Ends], bool] | None,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._patience = patience
        self._knows = knows
        self._is_stranger = False
        self._late: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        ends = cast("Ends", (self.client, self.server)) if self.client and self.server else None
        self._is_stranger = self._knows is not None and (ends is None or not self._knows(ends))
        if self._is_one_too_many():
            self.connections.discard(self)  # its end is reported later, after others have come
            self.transport.abort()  # it would have a descriptor of a process that needs some more
            return
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self.app_state = {**self.app_state, CERTIFICATE: secured.getpeercert(binary_form=True)}
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answers:
            self._stop()
        elif self._late is None:  # more bytes do not restart it
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self._patience.reading, self.transport.abort)

    def resume_writing(self) -> None:
        self._read()
        super().resume_writing()

    def _read(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
        self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._read()
        super().connection_lost(exc)

    def _is_one_too_many(self) -> bool:
        if len(self.connections) > self._patience.most:
            return True
        strangers = sum(map(_is_stranger, self.connections))
        return self._is_stranger and strangers > self._patience.strangers

    @property
    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._late = self.loop.call_later(self._patience.head, self._leave)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None

    def _leave(self) -> None:
        self._late = None
        if not self._answers:
            self.transport.close()


def _is_stranger(item: object) -> bool:
    return isinstance(item, _Impatient) and item._is_stranger


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
HANDSHAKE_PATIENCE = 10.0
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
    patience: float = HANDSHAKE_PATIENCE


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


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield


def _secured(tls: Tls, patience: ConnectionLimits, **given: Any) -> Handshake:  # noqa: ANN401
    """Return the protocol of a connection that begins with TLS."""
    return Handshake(tls, partial(_Impatient, patience, None, **given))


async def serve(
    app: ASGIApp,
    listening: Sequence[socket.socket],
    leave: asyncio.Event,
    *,
    tls: Tls | None = None,
    patience: ConnectionLimits = PATIENCE,
    knows: Callable[[Ends], bool] | None = None,
) -> None:
    """Serve an application on sockets of `bound` until `leave` is set.

    `knows` returns whether a client has access, from the addresses of both ends; without it, no
    connection counts as a stranger's.
    """
    made = partial(_Impatient, patience, knows) if tls is None else partial(_secured, tls, patience)
    config = uvicorn.Config(
        app,
        access_log=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=MAX_HEAD,
        # uvicorn calls it, and does not look whether it is a class.
        http=cast("type[asyncio.Protocol]", made),
        lifespan="off",
        log_config=None,
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=patience.idle,
        ws="none",
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=list(listening)))
    await wait_first(serving, leave)
    leave.set()
    server.should_exit = True
    await serving
