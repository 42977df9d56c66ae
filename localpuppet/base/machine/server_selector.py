"""Probe servers with new TCP connections: does a server, or its machine, answer at all?

- A connection that is accepted is an answer: a server listens.
- A refusal by the server's machine (a TCP reset, or an ICMP error that it sent) is an answer too:
  no process listens, but the packets make the round trip.
- Silence, an error of this machine, and an ICMP error of the local firewall or of a router are not
  answers. Linux reports a refusal by the local firewall as one by the server; the socket's error
  queue (`IP_RECVERR`, ip(7)) has its sender. A local rule that answers with a TCP reset in the
  server's name cannot be distinguished.

Each probe ends within its deadline. A name that no longer resolves keeps its last addresses. At
most one lookup runs for each name.
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


class ServerSelector:
    """Probes servers.

    Args:
        timeout: Seconds for one probe.
        look_up: Returns the addresses of a name and port; none if it cannot be resolved.
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
        """Return whether at least one server answers; all are probed at once."""
        return await _any([self._answers(*server) for server in self._servers])

    async def _answers(self, host: str, port: int) -> bool:
        try:
            async with asyncio.timeout(self._timeout):
                addresses = await self._addresses((host, port))
                return await _any([_answers(family, where) for family, where in addresses])
        except TimeoutError:
            return False

    async def _addresses(self, server: tuple[str, int]) -> list[Address]:
        """Return the current addresses of a server, or the last known ones."""
        lookup = self._lookups.get(server)
        if lookup is None:
            lookup = self._lookups[server] = asyncio.ensure_future(self._look_up(*server))
        known = self._known.get(server)
        # With known addresses, a hanging resolver must leave time for the probe.
        await asyncio.wait([lookup], timeout=None if known is None else self._timeout / 2)
        if lookup.done():
            del self._lookups[server]
            if lookup.result():
                known = self._known[server] = lookup.result()
        return known or []


async def _any(tries: Sequence[Coroutine[None, None, bool]]) -> bool:
    """Return whether one of the probes succeeds; the others are then cancelled."""
    tasks = [asyncio.create_task(coroutine) for coroutine in tries]
    try:
        for done in asyncio.as_completed(tasks):
            if await done:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name by this machine's resolver; none if it does not resolve."""
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [(family, where) for family, _, _, _, where in infos[:MAX_ADDRESSES]]


async def _answers(family: int, where: tuple[object, ...]) -> bool:
    """Return whether a machine answers a new connection."""
    level, option = (
        (socket.IPPROTO_IPV6, _IPV6_RECVERR)
        if family == socket.AF_INET6
        else (socket.IPPROTO_IP, _IP_RECVERR)
    )
    try:
        trying = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:  # for example: no IPv6 here
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
    """Return the senders of ICMP errors to a socket."""
    senders: list[str] = []
    while True:
        try:
            _, parts, _, _ = trying.recvmsg(1024, 512, socket.MSG_ERRQUEUE)
        except OSError:
            return senders
        for _, _, data in parts:
            origin = _ERROR.unpack_from(data)[1]
            if origin in _FROM_ICMP:
                senders.append(_address(data[_ERROR.size :]))


def _address(data: bytes) -> str:
    """Return the address in a `sockaddr`; empty for another family."""
    family = struct.unpack_from("=H", data)[0]
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[4:8])
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, data[8:24])
    return ""
