"""Tries new TCP connections: does a server, or the machine that it is on, answer at all?

Owns: what counts as an answer.

- A connection that is accepted: somebody listens.
- A refusal by the server's own machine (a TCP reset, or an ICMP error that it sent): nobody
  listens there, and a packet went there and back.
- Silence, an error of our own machine, an ICMP error of our own firewall or of a router on the way:
  no answer. Linux reports a refusal by our own firewall as one by the server; the socket's queue of
  errors (`IP_RECVERR`, ip(7)) tells who sent it. A local rule that answers with a TCP reset in the
  server's name cannot be told from the server.

Invariants: each look ends within its deadline; a name that cannot be resolved any more is looked up
where it was before; as many lookups are on as there are names, at the most.
"""

import asyncio
import errno
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Sequence

MAX_ADDRESSES = 8  # of one name
_IP_RECVERR, _IPV6_RECVERR = 11, 25  # linux/in.h, linux/in6.h; not in Python's socket
_ERROR = struct.Struct("=IBBBBII")  # struct sock_extended_err; who sent it follows
_FROM_ICMP = (2, 3)
_REFUSED = (errno.ECONNREFUSED, errno.ECONNRESET)
Address = tuple[int, tuple[object, ...]]  # its family, and what `connect` takes
LookUp = Callable[[str, int], Awaitable[list[Address]]]


class Reaching:
    """Tries servers.

    Args:
        servers: Host and port of each.
        timeout: Seconds for a look.
        look_up: Returns the addresses of a name and a port; none where it cannot be resolved.
    """

    def __init__(
        self, servers: Sequence[tuple[str, int]], *, timeout: float, look_up: LookUp | None = None
    ) -> None:
        self._servers = tuple(servers)
        self._look_up = look_up or resolve
        self._timeout = timeout
        self._known: dict[tuple[str, int], list[Address]] = {}
        self._lookups: dict[tuple[str, int], asyncio.Future[list[Address]]] = {}

    async def answers(self) -> bool:
        """Return whether one of the servers answers; all are tried at once."""
        return await _any([self._answers(*server) for server in self._servers])

    async def _answers(self, host: str, port: int) -> bool:
        try:
            async with asyncio.timeout(self._timeout):
                addresses = await self._addresses((host, port))
                return await _any([_answers(family, where) for family, where in addresses])
        except TimeoutError:
            return False

    async def _addresses(self, server: tuple[str, int]) -> list[Address]:
        """Return the addresses of a server, as they are or were."""
        lookup = self._lookups.get(server)
        if lookup is None:
            lookup = self._lookups[server] = asyncio.ensure_future(self._look_up(*server))
        known = self._known.get(server)
        # Where addresses are known a resolver that hangs does not take the time for trying them.
        await asyncio.wait([lookup], timeout=None if known is None else self._timeout / 2)
        if lookup.done():
            del self._lookups[server]
            if lookup.result():
                known = self._known[server] = lookup.result()
        return known or []


async def _any(tries: Sequence[Coroutine[None, None, bool]]) -> bool:
    """Return whether one of these succeeds; the others are given up then."""
    tasks = [asyncio.create_task(one) for one in tries]
    try:
        for done in asyncio.as_completed(tasks):
            if await done:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name, as this machine resolves it; none where it does not."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(family, where) for family, _, _, _, where in found[:MAX_ADDRESSES]]


async def _answers(family: int, where: tuple[object, ...]) -> bool:
    """Return whether a machine answers a new connection."""
    level, option = (
        (socket.IPPROTO_IPV6, _IPV6_RECVERR)
        if family == socket.AF_INET6
        else (socket.IPPROTO_IP, _IP_RECVERR)
    )
    try:
        trying = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:  # no IPv6 here, say
        return False
    with trying:
        trying.setsockopt(level, option, 1)
        try:
            await asyncio.get_running_loop().sock_connect(trying, where)
        except OSError as error:
            senders = _senders(trying)
            return (
                str(where[0]).partition("%")[0] in senders if senders else error.errno in _REFUSED
            )
        return True


def _senders(trying: socket.socket) -> list[str]:
    """Return who sent ICMP errors to a socket."""
    found: list[str] = []
    while True:
        try:
            _, parts, _, _ = trying.recvmsg(1024, 512, socket.MSG_ERRQUEUE)
        except OSError:
            return found
        for _, _, data in parts:
            origin = _ERROR.unpack_from(data)[1]
            if origin in _FROM_ICMP:
                found.append(_address(data[_ERROR.size :]))


def _address(data: bytes) -> str:
    """Return the address in a `sockaddr`; empty for another kind."""
    family = struct.unpack_from("=H", data)[0]
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[4:8])
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, data[8:24])
    return ""
