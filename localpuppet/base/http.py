"""One HTTP exchange: a request, and an answer with a certain sender, size and end.

- One `Deadline` covers the exchange from the name lookup to the last byte, also against a server or
  proxy that sends one byte now and then: each wait has only the time that is left.
- A body states its length or comes in chunks, arrives whole, and has at most as many bytes as the
  caller allows.
- https verifies the server with the route's authorities, else with the system's. Only a route with
  `plain` permits http.
- https connects through the route's proxy, else through `https_proxy`; `no_proxy` excepts hosts
  from both. `DIRECT` and plain http use no proxy.
- A request permits a number of redirects, by default none. They lead to https only, and a token
  goes only to the origin that it is for.
"""

import base64
import http.client
import io
import ipaddress
import socket
import ssl
import string
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin

from localpuppet import __version__
from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line, split_url, url_without_secrets
from localpuppet.base.machine.anchors import tls_context
from localpuppet.base.value import Value

DIRECT = ""
CHUNK = 256 * 1024
_REDIRECTS = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# What `socket.getaddrinfo` returns, and itself.
Address = tuple[Any, ...]
LookUp = Callable[..., list[Any]]
_HEADERS = {"User-Agent": f"localpuppet/{__version__}", "Connection": "close"}


class HttpError(Exception):
    """An exchange failed; the text is one line and repeats nothing of the answer."""


class BodyTooLargeError(HttpError):
    """The body has more bytes than the caller allows."""


class Deadline:
    """The end of one or several exchanges.

    Args:
        seconds: The time for all of it, from now.
        silence: Seconds that a server may send nothing; `None` for no such limit.
    """

    def __init__(self, seconds: float, *, silence: float | None = None) -> None:
        self._seconds = seconds
        self._silence = silence
        self._end = time.monotonic() + seconds
        self._line: socket.socket | None = None

    @property
    def problem(self) -> str:
        """What to report when a wait took too long."""
        if self._silence is None or time.monotonic() >= self._end:
            return f"timed out after {self._seconds:g} s"
        return f"the server sent nothing for {self._silence:g} s"

    def left(self, *, parts: int = 1) -> float:
        """Return the seconds that the next wait may take, of `parts` waits in a row.

        Raises:
            TimeoutError: No time is left.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left / parts if self._silence is None else min(left / parts, self._silence)

    def watch(self, line: socket.socket) -> None:
        """Let `end` interrupt this connection."""
        self._line = line

    def end(self) -> None:
        """End the exchange now; another thread may be waiting in it."""
        self._end = 0.0
        if self._line is not None:
            with suppress(OSError):  # it is closed
                # TLS's own `shutdown` would take its state from the waiting thread.
                socket.socket.shutdown(self._line, socket.SHUT_RDWR)


def resolve(
    host: str, port: int, deadline: Deadline, *, look_up: LookUp = socket.getaddrinfo
) -> list[Address]:
    """Return the addresses of a host in time; another thread waits, which nothing interrupts.

    Raises:
        OSError: The name has none; `TimeoutError` if no time is left.
        ValueError: It cannot be a name.
    """
    outcome: list[list[Address] | Exception] = []

    def ask() -> None:
        try:
            outcome.append(look_up(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            outcome.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(deadline.left())
    if not outcome:
        raise TimeoutError
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def connect(addresses: Sequence[Address], deadline: Deadline, *, source: str = "") -> socket.socket:
    """Return a connection to the first address that accepts one; `source` is this machine's.

    Raises:
        OSError: None accepts one in time.
    """
    problem = OSError("the name has no address")
    for number, (family, _, _, _, address) in enumerate(addresses):
        try:
            with ExitStack() as attempt:
                line = attempt.enter_context(socket.socket(family, socket.SOCK_STREAM))
                deadline.watch(line)
                if source:
                    line.bind((source, 0))
                line.settimeout(deadline.left(parts=len(addresses) - number))
                line.connect(address)
                attempt.pop_all()
                return line
        except OSError as error:
            problem = error
    raise problem


class HttpRoute(Value):
    """How servers are reached and verified.

    Attributes:
        ca: PEM file with the authorities to trust; `None` for the system's.
        certificate: The client's certificate and its key; `None` to show none.
        proxy: URL of the proxy for https; `None` for that of the environment, or `DIRECT`.
        plain: Whether http is permitted beside https.
        source: The address of this machine to connect from; empty for any.
        public: Whether only public addresses are permitted, also after a redirect. Then no proxy is
            used, because it would look names up itself.
    """

    ca: Path | None = None
    certificate: tuple[Path, Path] | None = None
    proxy: str | None = None
    plain: bool = False
    source: str = ""
    public: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request.

    Attributes:
        body: Sent with its length; it allows no redirects.
        token: Sent as `Authorization: Bearer …`; empty for none.
        token_url: A URL of the only origin that receives the token.
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    token_url: str = ""
    redirects: int = 0


class _Target(Value):
    """The parts of a URL that a connection needs; `address` is HOST:PORT."""

    secure: bool
    host: str
    port: int
    address: str
    path: str

    @property
    def origin(self) -> tuple[bool, str]:
        return self.secure, self.address


class HttpAnswer:
    """An answer whose head was received; `url` is the one that answered, after redirects."""

    def __init__(self, answer: http.client.HTTPResponse, deadline: Deadline) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.url = ""
        self._answer = answer
        self._deadline = deadline

    def chunks(self, limit: int) -> Iterator[bytes]:
        """Yield the body in pieces.

        Raises:
            BodyTooLargeError: It has more than `limit` bytes.
            HttpError: It did not arrive whole and in time.
        """
        length, size = self._answer.length, 0
        if length is None and not self._answer.chunked:
            raise HttpError(
                "the answer has no length, so a broken connection would look like its end"
            )
        too_large = BodyTooLargeError(f"is too large: the limit is {limit} bytes")
        if length is not None and length > limit:
            raise too_large
        while chunk := self._read():
            size += len(chunk)
            if size > limit:
                raise too_large
            yield chunk
        if length is not None and size != length:
            raise HttpError(f"the connection broke after {size} of {length} bytes")

    def _read(self) -> bytes:
        with _network_errors(self._deadline):
            return self._answer.read1(CHUNK)

    def body(self, limit: int) -> bytes:
        """Return the whole body; see `chunks`."""
        body = bytearray()
        for chunk in self.chunks(limit):
            body += chunk
        return bytes(body)


class HttpClient:
    """Does exchanges by one route; several threads may use it."""

    def __init__(self, route: HttpRoute, *, look_up: LookUp = socket.getaddrinfo) -> None:
        self._route = route
        self._look_up = look_up

    @contextmanager
    def open(self, request: HttpRequest, deadline: Deadline) -> Iterator[HttpAnswer]:
        """Yield the answer to a request; the connection closes at the end.

        Raises:
            HttpError: The server did not answer in time, is not trusted, or does not speak HTTP.
            InvalidInputError: The URL is refused, or a file of the route is.
        """
        url, target = request.url, _parse_url(request.url, plain=self._route.plain)
        for _ in range(request.redirects + 1):
            with ExitStack() as stack:
                headers = {"Host": target.address.removesuffix(":443" if target.secure else ":80")}
                if request.token and target.origin == _parse_url(request.token_url).origin:
                    headers["Authorization"] = f"Bearer {request.token}"
                headers |= request.headers
                with _network_errors(deadline):
                    wire = self._connect(target, deadline, stack)
                    answer = wire.ask(request.method, target.path, headers, stack, request.body)
                location = answer.headers.get("Location")
                if not request.redirects or answer.status not in _REDIRECTS or not location:
                    answer.url = url
                    yield answer
                    return
            url, target = _follow(url, location)
        raise HttpError(f"redirects more than {request.redirects} times")

    def _connect(self, target: _Target, deadline: Deadline, stack: ExitStack) -> "_Wire":
        tls = self._tls if target.secure else None  # refuses its files before anything is sent
        proxy, headers = self._proxy(target)
        addresses = self._resolve(proxy or target, deadline)
        line = stack.enter_context(connect(addresses, deadline, source=self._route.source))
        if proxy is not None:
            answer = _Wire(line, deadline).ask("CONNECT", target.address, headers, stack)
            if answer.status // 100 != 2:
                raise HttpError(f"the proxy {proxy.address} answered {answer.status}")
        if tls is not None:
            line = stack.enter_context(
                tls.wrap_socket(line, server_hostname=target.host, do_handshake_on_connect=False)
            )
            deadline.watch(line)
            line.settimeout(deadline.left())
            line.do_handshake()
        return _Wire(line, deadline)

    def _proxy(self, target: _Target) -> tuple[_Target | None, dict[str, str]]:
        """Return the proxy for a target, if any, and the headers for it."""
        headers = {"Host": target.address}
        if not target.secure or self._route.proxy == DIRECT or self._route.public:
            return None, headers
        from urllib.request import getproxies, proxy_bypass

        url = self._route.proxy or getproxies().get("https")
        if not url or proxy_bypass(target.address):
            return None, headers
        scheme, _, rest = url.rpartition("://")
        user, _, address = rest.rpartition("@")
        if user:
            basic = base64.b64encode(unquote(user).encode()).decode()
            headers["Proxy-Authorization"] = f"Basic {basic}"
        return _parse_url(f"{scheme or 'http'}://{address}", plain=True), headers

    def addresses(self, url: str, deadline: Deadline) -> list[str]:
        """Return the IP addresses of a URL's host, which the route permits.

        Raises:
            HttpError: The name has none in time, or the route forbids one.
            InvalidInputError: The URL is refused.
        """
        with _network_errors(deadline):
            found = self._resolve(_parse_url(url, plain=self._route.plain), deadline)
        return list(dict.fromkeys(address[4][0] for address in found))

    def _resolve(self, server: _Target, deadline: Deadline) -> list[Address]:
        found = resolve(server.host, server.port, deadline, look_up=self._look_up)
        if self._route.public and not all(is_public(item[4][0]) for item in found):
            raise HttpError("has an address that is not public")
        return found

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return tls_context(self._route.ca, *(self._route.certificate or ()))


class _Wire(io.RawIOBase):
    """A connection as `http.client` uses one; each wait has the time that is left."""

    def __init__(self, line: socket.socket, deadline: Deadline) -> None:
        self._line = line
        self._deadline = deadline

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        stack: ExitStack,
        body: bytes = b"",
    ) -> HttpAnswer:
        speaker = http.client.HTTPConnection(headers["Host"])
        speaker.sock = self
        speaker.request(method, path, body or None, headers={**_HEADERS, **headers})
        return HttpAnswer(stack.enter_context(speaker.getresponse()), self._deadline)

    def sendall(self, data: bytes) -> None:
        self._line.settimeout(self._deadline.left())
        self._line.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        # http.client closes what it reads from, and the connection before it has read the body.
        return io.BufferedReader(_Wire(self._line, self._deadline))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - only typeshed names buffers
        self._line.settimeout(self._deadline.left())
        return self._line.recv_into(buffer)


@contextmanager
def _network_errors(deadline: Deadline) -> Iterator[None]:
    """Raise what goes wrong between two machines as `HttpError`."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        problem = f"certificate verify failed: {one_line(error.verify_message)}"
        raise HttpError(problem) from error
    except TimeoutError as error:
        raise HttpError(error.strerror or deadline.problem) from error
    except OSError as error:
        raise HttpError(one_line(error.strerror or str(error)) or type(error).__name__) from error
    except (ValueError, http.client.HTTPException) as error:
        # Their text repeats the answer.
        raise HttpError(f"did not answer with HTTP: {type(error).__name__}") from error


def is_public(address: str) -> bool:
    """Return whether an IP address, or the IPv4 address in it, belongs to the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast


def _parse_url(url: str, *, plain: bool = False) -> _Target:
    """Return the parts of an absolute https (or, if `plain`, http) URL."""
    where = url_without_secrets(url)
    parts = split_url(url, where=where)
    try:
        port, host = parts.port, (parts.hostname or "").encode("idna").decode()
    except UnicodeError as error:
        raise InvalidInputError(f"is not a URL: {error}", where=where) from error
    secure = parts.scheme == "https"
    if not secure and not (plain and parts.scheme == "http"):
        raise InvalidInputError("is not an https URL", where=where)
    if not host:
        raise InvalidInputError("has no host", where=where, hint="https://HOST/PATH")
    if "@" in parts.netloc:
        raise InvalidInputError("a URL must not hold credentials", where=where)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise InvalidInputError("has a character that must be written as %XX", where=where)
    port = port or (443 if secure else 80)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _Target(secure=secure, host=host, port=port, address=address, path=path)


def _follow(url: str, location: str) -> tuple[str, _Target]:
    """Return where a redirect leads."""
    try:
        url = urljoin(url, quote(location, safe=string.punctuation, encoding="iso-8859-1"))
        return url, _parse_url(url)
    except (ValueError, InvalidInputError) as error:
        raise HttpError("redirects to a URL that is not https") from error
