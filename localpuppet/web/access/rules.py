"""Access rules for all ways in: methods, Host and Origin, rate limits, and response headers.

- The Host must be one of the dashboard's, because any DNS name can resolve here (DNS rebinding).
- Requests that other sites embed or send are rejected; their links work.

The kernel is asked for exactly that socket (`sock_diag(7)`), so the cost does not depend on how
many sockets exist.

- A socket that its program has closed already has the number of root and no inode. It has no owner.
- A socket in another network namespace has no owner either.
- In a user namespace the kernel shows users that have no number there as `NOBODY`. So this user is
  never an owner.
- If no connection has these addresses, the kernel answers with a listening socket of that port.
  Its answer then names other ports, and counts as none.
"""

import ipaddress
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.value import Value

METHODS = ("GET", "HEAD")
# Methods of an interface whose queries may be in the body of a request.
QUERY_METHODS = (*METHODS, "POST")
STATIC = "/static/"
# Where in the state of a connection its certificate is.
CERTIFICATE = "certificate"
# Requests a second, and at once: of those who may look together, and of all others.
RATE, BURST = 500.0, 1000.0
STRANGERS_RATE, STRANGERS_BURST = 10.0, 60.0
# The same of programs, whose queries wait for each other.
QUERY_RATE, QUERY_BURST = 10_000.0, 20_000.0

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src"
    " 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": a form's Origin would be "null" then.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
# The addresses and ports of a client and of this end.
Ends = tuple[tuple[str, int], tuple[str, int]]
HTTPS = 443


class AccessRefusal(Value):
    """The reason why a request is rejected."""

    code: int
    what: str
    hint: str


class Visitor(Value):
    """The client of a request; header names are in lower case, and the certificate is DER.

    Without TLS, there is no certificate. `ends` is `None` if the client has left.
    """

    headers: Mapping[str, str]
    certificate: bytes = b""
    ends: Ends | None = None

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> "Visitor":
        """Return the visitor in the ASGI scope of a request."""
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        client, server = scope.get("client"), scope.get("server")
        return cls(
            headers=headers,
            certificate=scope.get("state", {}).get(CERTIFICATE, b""),
            ends=(tuple(client), tuple(server)) if client and server else None,
        )


class AccessRule(Protocol):
    """Decides about requests."""

    @property
    def url(self) -> str:
        """Return the address of the dashboard."""

    def knows(self, visitor: Visitor) -> bool:
        """Return whether a visitor has access; called repeatedly during streams."""

    def refusal(self, method: str, path: str, visitor: Visitor) -> AccessRefusal | None:
        """Return why a request is rejected, or `None`."""


NO_METHOD = AccessRefusal(code=405, what="The dashboard is read-only here.", hint="Use GET.")
# A proxy before us may take the other length for the end of the request (RFC 9112, section 6.1).
TWO_LENGTHS = AccessRefusal(
    code=400,
    what="The request has a Content-Length and a Transfer-Encoding.",
    hint="Send one of the two.",
)
NO_HOST = AccessRefusal(
    code=403,
    what="The request names another host than the dashboard's.",
    hint="Open the address that 'localpuppet web' printed. Through a tunnel, use the same port on"
    " both sides.",
)
NO_ORIGIN = AccessRefusal(
    code=403, what="The request comes from another site.", hint="Open the dashboard in its own tab."
)
UNAVAILABLE = AccessRefusal(
    # A client does not learn details about files of this machine.
    code=503,
    what="The access list is unavailable: a file of this machine is invalid.",
    hint="Operator of the dashboard: 'localpuppet check' names the file.",
)
TOO_MANY = AccessRefusal(code=429, what="Too many requests.", hint="Wait a second.")


def unlisted(setting: str, name: str) -> AccessRefusal:
    """Return the refusal for a name that is not on the list of a setting."""
    return AccessRefusal(
        code=403,
        what=f"No access: {setting} does not list {name}.",
        hint=f"Ask the operator of the dashboard to add the name to {setting} in"
        " localpuppet.yaml; no restart is needed.",
    )


class RateLimit:
    """A token bucket for requests: `rate` a second, and `burst` at once after a pause."""

    def __init__(self, rate: float, burst: float, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._left = burst
        self._at = monotonic()

    def take(self) -> bool:
        """Take a token; return whether one was available."""
        now = self._monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class RequestGate:
    """The first checks of every request: its rate, its Host and its Origin."""

    def __init__(
        self,
        hosts: Collection[str],
        scheme: str,
        monotonic: Callable[[], float],
        methods: Collection[str] = METHODS,
    ) -> None:
        self._hosts = hosts
        self._scheme = scheme
        limits = (QUERY_RATE, QUERY_BURST) if "POST" in methods else (RATE, BURST)
        self._known = RateLimit(*limits, monotonic)
        self._strangers = RateLimit(STRANGERS_RATE, STRANGERS_BURST, monotonic)

    def refusal(self, headers: Mapping[str, str], *, known: bool) -> AccessRefusal | None:
        """Return why a request is rejected whatever its URL, or `None`."""
        if not (self._known if known else self._strangers).take():
            return TOO_MANY
        return _stray(headers, hosts=self._hosts, scheme=self._scheme)


def _stray(
    headers: Mapping[str, str], *, hosts: Collection[str], scheme: str
) -> AccessRefusal | None:
    """Return why a request was meant for another host or comes from another site, by its scheme."""
    if headers.get("host", "").lower() not in hosts:
        return NO_HOST
    origin = headers.get("origin")
    if origin is not None and origin not in [f"{scheme}://{host}" for host in hosts]:
        return NO_ORIGIN
    # A link on another site may lead here; what it embeds does not.
    cross = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    return NO_ORIGIN if cross and headers.get("sec-fetch-mode") != "navigate" else None


_UNKNOWN = AccessRefusal(
    code=403,
    what="The user of this connection is unknown.",
    hint="Connect from a process on this machine, outside of a container.",
)


class LocalUserRule:
    """Decides about requests of users of this machine.

    `users` returns the current list as numbers; `owner` the user of a connection, from both ends.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        users: Callable[[], Collection[int]],
        owner: Callable[[tuple[str, int], tuple[str, int]], int | None],
        monotonic: Callable[[], float],
    ) -> None:
        names = dict.fromkeys((address, "127.0.0.1", "::1", "localhost"))
        shown = [f"[{name}]" if ":" in name else name for name in names]
        self.hosts = tuple(f"{name}:{port}" for name in shown)
        self._users = users
        self._owner = owner
        self._gate = RequestGate(self.hosts, "http", monotonic, QUERY_METHODS)

    @property
    def url(self) -> str:
        """Return the address of the API."""
        return f"http://{self.hosts[0]}/"

    def admits(self, ends: Ends) -> bool:
        """Return whether the client of a connection has access."""
        return self.knows(Visitor(headers={}, ends=ends))

    def knows(self, visitor: Visitor) -> bool:
        """Return whether a visitor has access."""
        return self._why_not(visitor) is None

    def client(self, visitor: Visitor) -> str:
        """Return the number of a visitor's user as a text; empty if it is unknown."""
        return str(self._user(visitor) or "")

    def refusal(self, method: str, path: str, visitor: Visitor) -> AccessRefusal | None:
        """Return why a request is rejected, or `None`; see `AccessRule`."""
        why = self._why_not(visitor)
        refused = self._gate.refusal(visitor.headers, known=why is None)
        if refused is None and method not in QUERY_METHODS:
            return NO_METHOD
        return refused or why

    def _user(self, visitor: Visitor) -> int | None:
        if visitor.ends is None:
            return None
        return self._owner(*visitor.ends)

    def _why_not(self, visitor: Visitor) -> AccessRefusal | None:
        user = self._user(visitor)
        if user is None:
            return _UNKNOWN
        try:
            if user in self._users():
                return None
        except LocalpuppetError:
            return UNAVAILABLE
        return unlisted("web.puppetdb.users", f"the user {user}")


class PeopleDoor:
    """Decides about requests of people with certificates.

    `holder` returns the name in a certificate that TLS has accepted, or raises if it is no longer
    valid.
    """

    def __init__(
        self,
        names: Collection[str],
        port: int,
        *,
        people: Callable[[], Collection[SignerName]],
        holder: Callable[[bytes], SignerName],
        monotonic: Callable[[], float],
        setting: str = "web.people",
        methods: Collection[str] = METHODS,
    ) -> None:
        shown = [f"[{name}]" if ":" in name else name for name in names]
        self.hosts = tuple(f"{name}:{port}" for name in shown)
        if port == HTTPS:
            self.hosts = (*shown, *self.hosts)
        self._people = people
        self._setting = setting
        self._methods = methods
        self._holder = holder
        self._threshold = RequestGate(self.hosts, "https", monotonic, methods)

    @property
    def url(self) -> str:
        """Return the address of the dashboard."""
        return f"https://{self.hosts[0]}/"

    def client(self, visitor: Visitor) -> str:
        """Return the name of a visitor that has access."""
        return self._holder(visitor.certificate)

    def knows(self, visitor: Visitor) -> bool:
        """Return whether a visitor has access."""
        return self._why_not(visitor.certificate) is None

    def refusal(self, method: str, path: str, visitor: Visitor) -> AccessRefusal | None:
        """Return why a request is rejected, or `None`."""
        why = self._why_not(visitor.certificate)
        refused = self._threshold.refusal(visitor.headers, known=why is None)
        if refused is not None:
            return refused
        if method not in self._methods:
            return NO_METHOD
        return None if path.startswith(STATIC) else why

    def _why_not(self, certificate: bytes) -> AccessRefusal | None:
        try:
            name = self._holder(certificate)
            if name in self._people():
                return None
        except InvalidInputError:
            return UNAVAILABLE
        except LocalpuppetError as error:
            return AccessRefusal(code=403, what=f"No access: {error.what}.", hint=error.hint)
        return unlisted(self._setting, name)


@dataclass(frozen=True, slots=True)
class AccessMiddleware:
    """Rejects requests that the access rule refuses, and adds headers to each response."""

    shown: ASGIApp
    door: AccessRule
    refused: Callable[[AccessRefusal], Response]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; there are no web sockets."""
        if scope["type"] == "lifespan":
            await self.shown(scope, receive, send)
        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with(message["headers"])}
            await send(message)

        visitor = Visitor.of(scope)
        if {"content-length", "transfer-encoding"} <= visitor.headers.keys():
            answer = self.refused(TWO_LENGTHS)
            answer.headers["connection"] = "close"
            await answer(scope, receive, sending)
            return
        refusal = self.door.refusal(scope["method"], scope["path"], visitor)
        if refusal is None:
            await self.shown(scope, receive, sending)
            return
        answer = self.refused(refusal)
        if refusal.code == 405:
            answer.headers["allow"] = ", ".join(METHODS)
        await answer(scope, receive, sending)


def _with(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers, with the headers of every response that they lack."""
    there = {name.lower() for name, _ in headers}
    ours: Mapping[str, str] = HEADERS
    return headers + [
        (name.encode(), value.encode())
        for name, value in ours.items()
        if name.encode() not in there
    ]


NOBODY = 65534
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
# Family, protocol, states; ports and addresses; any interface, and no cookie.
_QUERY = struct.Struct("=BBxx4s2s2s16s16s4x8s")
_ANSWER = struct.Struct("=IHHII")
_MAX_ANSWER = 8192
# The state, the socket's ports and addresses, three counters, the user's number and the inode.
_OWNER = struct.Struct("=4x2s2s56xII")
_ANY = b"\xff" * 8
Address = tuple[str, int]


def socket_owner(client: Address, server: Address) -> int | None:
    """Return the number of the user whose socket is the client of a connection.

    Returns:
        `None` if the kernel does not know such a socket, or does not answer.
    """
    ends = [ipaddress.ip_address(host.partition("%")[0]) for host, _ in (client, server)]
    family = socket.AF_INET6 if ends[0].version == 6 else socket.AF_INET
    ports = client[1].to_bytes(2), server[1].to_bytes(2)
    query = _QUERY.pack(
        family, socket.IPPROTO_TCP, b"\xff" * 4, *ports, *(end.packed for end in ends), _ANY
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.send(_ANSWER.pack(_ANSWER.size + len(query), _BY_FAMILY, _REQUEST, 1, 0) + query)
            answer = kernel.recv(_MAX_ANSWER)
    except OSError:
        return None
    _, kind, *_ = _ANSWER.unpack_from(answer)
    if kind != _BY_FAMILY or len(answer) < _ANSWER.size + _OWNER.size:
        return None
    sport, dport, user, inode = _OWNER.unpack_from(answer, _ANSWER.size)
    return user if inode and user != NOBODY and (sport, dport) == ports else None
