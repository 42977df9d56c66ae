"""The HTTP server of the dashboard and the API: sockets, the application, and an orderly end.

A client that sends nothing, or byte by byte, or does not read its answer, is disconnected after
some seconds (`ConnectionLimits`), because connections are limited and anyone can open some.
"""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.web.access.http_limits import MAX_CONNECTIONS, MAX_HEAD
from localpuppet.web.access.rules import CERTIFICATE, Ends
from localpuppet.web.access.tls import Handshake, Tls

BACKLOG = 128
# Ports to try if any will do: one may be taken on the other address.
TRIES = 8
LOCALHOST = ("127.0.0.1", "::1")
# Errors of an unavailable address: a machine without IPv6, or without IPv4.
_NOT_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
# Seconds of connections that end with us.
GRACE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """The address and port of the dashboard or the API; port 0 is any free one."""

    address: str
    port: int
    option: str = field(default="--listen", compare=False)

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
        """Return the address and port.

        Args:
            text: `127.0.0.1:8141`, `[::1]:8141`, `localhost:0`, `0.0.0.0:8443`.

        Raises:
            InvalidInputError: The text has another form.
        """
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
    """Yield listening sockets on one port, the place's address first; none is served yet.

    Raises:
        StateError: The port is taken.
    """
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
    """Limits of connections.

    Attributes:
        head: Seconds for the head of a request, from the connection or its first byte.
        idle: Seconds until the next request, after an answer.
        reading: Seconds in which a client must read what fills its buffer.
        strangers: Maximum number of connections of clients without access; see `serve`.
    """

    most: int = MAX_CONNECTIONS
    head: float = 10.0
    idle: int = 10
    reading: float = 30.0
    strangers: int = 32


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
    """Serve an application until `leave` is set.

    Args:
        listening: From `bound`.
        knows: Returns whether a client has access, from the addresses of both ends; without it, no
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
