"""How to reach an engine's servers, whether one answers, and why TLS to one of them failed.

A new option of an engine is a field here, a line in the schema of the settings, and its use.

With TLS 1.3 a server refuses a client's certificate after the handshake, often by closing the
connection without a word.

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
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.text import one_line, split_url, url_without_secrets
from localpuppet.base.machine.anchors import read_anchor
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.base.value import Value

ENGINES = ("sqlite", "etcd", "nats")
# How a connection ends whose server refused the client's certificate; which comes first is chance.
LOST = (ConnectionResetError, BrokenPipeError)
# Engine → the scheme with TLS, the one without, and the default port.
_SCHEMES = {"etcd": ("https", "http", 2379), "nats": ("tls", "nats", 4222)}
_FILES = ("ca", "certificate", "key", "password_file", "credentials")
_PLAIN = ("user", "stream", "replicas", "api")
# A setting, and another one that it requires.
_TOGETHER = (("certificate", "key"), ("key", "certificate"), ("user", "password_file"))


class Endpoint(Value):
    """A server by its URL, as the user wrote it, without credentials."""

    url: str
    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, url: str, *, engine: str) -> "Endpoint":
        """Return the endpoint of `https://HOST[:PORT]` (etcd) or `tls://HOST[:PORT]` (NATS).

        `http://` and `nats://` mean no TLS.
        """
        secure, plain, port = _SCHEMES[engine]
        where = one_line(url_without_secrets(url)).partition("?")[0]
        parts = split_url(url, where=where)
        port = parts.port or port
        if "@" in parts.netloc:
            raise InvalidInputError(
                "a URL must not hold credentials", where=where, hint="use user and password_file"
            )
        beside = (parts.path.strip("/"), parts.query, parts.fragment)
        if parts.scheme not in (secure, plain) or not parts.hostname or any(beside):
            raise InvalidInputError(
                f"is not a server of {engine}", where=where, hint=f"write {secure}://HOST:{port}"
            )
        # urlsplit drops some of these characters; a library that takes the URL may not.
        if not url.isprintable() or " " in url:
            raise InvalidInputError("holds a blank or a control character", where=where)
        return cls(url=url, host=parts.hostname, port=port, tls=parts.scheme == secure)


class Servers(Value):
    """How to reach an engine's servers.

    Attributes:
        endpoints: At least one server, in the order of attempts.
        ca: PEM file with the authorities that verify the servers' certificates; `None` for the
            system's.
        key: PEM file with its private key; `None` if the key is in `certificate`.
        credentials: A NATS credentials file: JWT and nkey, or an nkey's seed alone.
        replicas: Number of servers of a NATS cluster that keep a stream made by localpuppet.
        max_bytes: Maximum size of a NATS stream made by localpuppet.
        api: The prefix of NATS's JetStream API; another one if it is imported from an account.
    """

    endpoints: tuple[Endpoint, ...]
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    credentials: Path | None = None
    stream: str = "localpuppet"
    replicas: int = 1
    max_bytes: int = 1024**3
    api: str = "$JS.API"

    @property
    def tls(self) -> bool:
        """Return whether a URL requires TLS."""
        return any(endpoint.tls for endpoint in self.endpoints)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, engine: str, root: Path, where: str) -> "Servers":
        """Return the servers in the settings of an engine; relative paths begin at `root`."""
        for item, other in _TOGETHER:
            if item in raw and other not in raw:
                raise InvalidInputError(f"{item} needs {other}, too", where=where)
        return cls(
            endpoints=_endpoints(raw["servers"], engine=engine, where=where),
            **{key: root / raw[key] for key in _FILES if key in raw},
            **{key: raw[key] for key in _PLAIN if key in raw},
        )


def _endpoints(urls: Sequence[str], *, engine: str, where: str) -> tuple[Endpoint, ...]:
    endpoints = []
    for index, url in enumerate(urls):
        with errors_at(f"{where}.servers[{index}]"):
            endpoints.append(Endpoint.parse(url, engine=engine))
    return tuple(endpoints)


READ = 64 * 1024


def read_little(transport: asyncio.BaseTransport | None) -> None:
    """Set the read buffer to `READ` bytes, which malloc serves without a system call.

    The kernel maps and unmaps asyncio's buffer of 256 KiB for every message. Under TLS, the
    protocol object has the buffer. A transport without such a buffer is left unchanged.
    """
    for reader in (transport, getattr(transport, "_ssl_protocol", None)):
        if hasattr(reader, "max_size"):
            reader.max_size = READ  # type: ignore[union-attr]


def failure_text(error: Exception) -> str:
    """Return the text of an error of a library or of the system, on one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno and text.startswith("Connect call failed"):
        text = os.strerror(error.errno)  # asyncio's text is an address, which the place has
    return one_line(text)


def tls_failure(error: Exception, servers: Servers) -> str | None:
    """Return what failed and the certificate or authority to look at; `None` if not TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        trusted = servers.ca or "the system's authorities"
        return one_line(
            f"TLS: the server's certificate is refused: {error.verify_message} (trusted: {trusted})"
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        refused = "alert" in reason and ("certificate" in reason or "unknown ca" in reason)
        about = f"the server refuses {own_certificate(servers)}: " if refused else ""
        return one_line(f"TLS: {about}{reason}")
    return None


def lost_connection(text: str, servers: Servers) -> str:
    """Return the reason of a lost connection, with the certificate that may have caused it."""
    if not servers.tls:
        return text
    return f"{text} (the server may have refused {own_certificate(servers)})"


def own_certificate(servers: Servers) -> str:
    """Return the client's certificate for people: its file, and whether it has expired."""
    if servers.certificate is None:
        return "a client without a certificate"
    problem = certificate_problem(servers.certificate, SystemClock().now())
    return f"the certificate {servers.certificate}{f', which {problem}' if problem else ''}"


def certificate_problem(path: Path, now: datetime) -> str:
    """Return why no server accepts a certificate now, such as `expired on …`; empty if none."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(read_anchor(path))
    except (InvalidInputError, ValueError):
        return "cannot be read"
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""


MAX_ADDRESSES = 8  # of one name
_IP_RECVERR, _IPV6_RECVERR = 11, 25  # linux/in.h, linux/in6.h; not in Python's socket
_ERROR = struct.Struct("=IBBBBII")  # struct sock_extended_err; who sent it follows
_FROM_ICMP = (2, 3)
_REFUSED = (errno.ECONNREFUSED, errno.ECONNRESET)
Address = tuple[int, tuple[object, ...]]  # its family, and what `connect` takes
LookUp = Callable[[str, int], Awaitable[list[Address]]]


class ServerSelector:
    """Probes servers, each within `timeout`; `look_up` returns no address for an unknown name."""

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
    # Of a text, Python would load the tables of all letters that a name may have: 0.8 MiB.
    name = host.encode() if host.isascii() else host
    try:
        infos = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
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
