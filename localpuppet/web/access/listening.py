"""Opens the sockets on which the dashboard and the API listen.

Browsers use `::1` or `127.0.0.1` for `localhost` and each name below it. If the dashboard listens
on one of them, it takes the port on both; otherwise another user of this machine could receive
links.
"""

import errno
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError, StateError

BACKLOG = 128
# Ports to try if any will do: one may be taken on the other address.
TRIES = 8
LOCALHOST = ("127.0.0.1", "::1")
# Errors of an unavailable address: a machine without IPv6, or without IPv4.
_NOT_THERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """The address and port of the dashboard or the API.

    Attributes:
        address: An address of this machine; `0.0.0.0` and `::` are all of them.
        port: The port; 0 for any free one.
        option: The option that names it, for messages.
    """

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
            option: The option, for messages.

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
    """Return a socket at the other address of `localhost`; none if listening there is impossible.

    Raises:
        OSError: Another process has the port there; `first` is closed then.
    """
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
