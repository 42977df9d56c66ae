"""Access rules for all ways in: methods, Host and Origin, rate limits, and response headers.

- The Host must be one of the dashboard's, because any DNS name can resolve here (DNS rebinding).
- Requests that other sites embed or send are rejected; their links work.
- On loopback, a browser needs the cookie that the link gave. Without it, a client gets only the
  style sheet, the script and the entrance. An action requires a POST to an address of `ACT` with
  the dashboard's Origin.

The kernel is asked for the user of a connection by its socket (`sock_diag(7)`), so the cost does
not depend on how many sockets exist.

- A socket that its program has closed already has the number of root and no inode. It has no owner.
- A socket in another network namespace has no owner either.
- In a user namespace the kernel shows users that have no number there as `NOBODY`. So this user is
  never an owner.
- If no connection has these addresses, the kernel answers with a listening socket of that port.
  Its answer then names other ports, and counts as none.
"""

import hashlib
import ipaddress
import re
import secrets
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.files import make_private, write_durably
from localpuppet.base.value import Value
from localpuppet.fleet.trust.key_files import read_private
from localpuppet.web.access.http_limits import MAX_COOKIES, MAX_SESSIONS, MAX_TOKENS

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


class AccessRule:
    """Decides about requests: their rate, Host, Origin and method; subclasses, about visitors.

    Attributes:
        url: The address of the dashboard or the API.
    """

    def __init__(
        self,
        names: Collection[str],
        port: int,
        monotonic: Callable[[], float],
        *,
        scheme: str = "http",
        methods: Collection[str] = METHODS,
    ) -> None:
        shown = [f"[{name}]" if ":" in name else name for name in names]
        hosts = [f"{name}:{port}" for name in shown]
        self._hosts = [*shown, *hosts] if (scheme, port) == ("https", HTTPS) else hosts
        self._origins = [f"{scheme}://{host}" for host in self._hosts]
        self.url = f"{self._origins[0]}/"
        self._methods = methods
        limits = (QUERY_RATE, QUERY_BURST) if "POST" in methods else (RATE, BURST)
        self._known = RateLimit(*limits, monotonic)
        self._strangers = RateLimit(STRANGERS_RATE, STRANGERS_BURST, monotonic)

    def knows(self, visitor: Visitor) -> bool:
        """Return whether a visitor has access; called repeatedly during streams."""
        return self._why_not(visitor) is None

    def refusal(self, method: str, path: str, visitor: Visitor) -> AccessRefusal | None:
        """Return why a request is rejected, or `None`."""
        why = self._why_not(visitor)
        if not (self._strangers if why else self._known).take():
            return TOO_MANY
        refused = self._stray(visitor.headers) or self._refused_method(method, path, visitor)
        return refused or (None if self._is_open(path) else why)

    def _stray(self, headers: Mapping[str, str]) -> AccessRefusal | None:
        """Return why a request was meant for another host or comes from another site."""
        if headers.get("host", "").lower() not in self._hosts:
            return NO_HOST
        if headers.get("origin") not in (None, *self._origins):
            return NO_ORIGIN
        # A link on another site may lead here; what it embeds does not.
        cross = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        return NO_ORIGIN if cross and headers.get("sec-fetch-mode") != "navigate" else None

    def _refused_method(self, method: str, path: str, visitor: Visitor) -> AccessRefusal | None:
        return None if method in self._methods else NO_METHOD

    def _is_open(self, path: str) -> bool:
        """Return whether visitors without access get a path, too."""
        return False

    def _why_not(self, visitor: Visitor) -> AccessRefusal | None:
        """Return why a visitor has no access, or `None`."""
        raise NotImplementedError


_UNKNOWN = AccessRefusal(
    code=403,
    what="The user of this connection is unknown.",
    hint="Connect from a process on this machine, outside of a container.",
)


class LocalUserRule(AccessRule):
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
        super().__init__(names, port, monotonic, methods=QUERY_METHODS)
        self._users = users
        self._owner = owner

    def admits(self, ends: Ends) -> bool:
        """Return whether the client of a connection has access."""
        return self.knows(Visitor(headers={}, ends=ends))

    def client(self, visitor: Visitor) -> str:
        """Return the number of a visitor's user as a text; empty if it is unknown."""
        return str(self._user(visitor) or "")

    def _user(self, visitor: Visitor) -> int | None:
        return None if visitor.ends is None else self._owner(*visitor.ends)

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


class PeopleDoor(AccessRule):
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
        super().__init__(names, port, monotonic, scheme="https", methods=methods)
        self._people = people
        self._setting = setting
        self._holder = holder

    def client(self, visitor: Visitor) -> str:
        """Return the name of a visitor that has access."""
        return self._holder(visitor.certificate)

    def _is_open(self, path: str) -> bool:
        return path.startswith(STATIC)

    def _why_not(self, visitor: Visitor) -> AccessRefusal | None:
        try:
            name = self._holder(visitor.certificate)
            if name in self._people():
                return None
        except InvalidInputError:
            return UNAVAILABLE
        except LocalpuppetError as error:
            return AccessRefusal(code=403, what=f"No access: {error.what}.", hint=error.hint)
        return unlisted(self._setting, name)


LINK_LIFE = 600.0
SESSION_LIFE = 12 * 3600.0
TOKEN_LIFE = 600.0
BYTES = 32
# Of the name of a host: a label of 32 letters and digits.
NAME_BYTES = 16
_NAME = re.compile(rf"[0-9a-f]{{{2 * NAME_BYTES}}}")


def host_name() -> str:
    """Return an unguessable host name."""
    return secrets.token_hex(NAME_BYTES)


def kept_host_name(file: Path) -> str:
    """Return the host name in a user's file, so that bookmarks work after a restart.

    If the file does not exist, has no name, or other users could read it, it gets a new name.
    """
    with suppress(InvalidInputError):
        name = read_private(file).decode("ascii", "replace").strip()
        if _NAME.fullmatch(name):
            return name
    name = host_name()
    make_private(file.parent)
    write_durably(file, f"{name}\n".encode())
    return name


class Secrets:
    """The last secrets that were given out, each for one subject and for some seconds.

    Only their digests are kept, so the time of a look-up says nothing of a secret.
    """

    def __init__(self, most: int, life: float, monotonic: Callable[[], float]) -> None:
        self._life = life
        self._monotonic = monotonic
        self._ends: BoundedDict[bytes, float] = BoundedDict(most)

    def give(self, subject: str = "") -> str:
        secret = secrets.token_urlsafe(BYTES)
        self._ends[_digest(secret, subject)] = self._monotonic() + self._life
        return secret

    def knows(self, secret: str, subject: str = "") -> bool:
        """Return whether a secret is valid."""
        return self._ends.get(_digest(secret, subject), 0.0) > self._monotonic()

    def take(self, secret: str, subject: str = "") -> bool:
        """Return whether a secret is valid, and invalidate it."""
        return self._ends.pop(_digest(secret, subject), 0.0) > self._monotonic()


def _digest(secret: str, subject: str) -> bytes:
    return hashlib.sha256(f"{secret} {subject}".encode("utf-8", "backslashreplace")).digest()


class Sessions:
    """The links and cookies of one server process."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._links = Secrets(1, LINK_LIFE, monotonic)
        self._cookies = Secrets(MAX_SESSIONS, SESSION_LIFE, monotonic)
        self.knows = self._cookies.knows

    def link(self) -> str:
        """Return the secret of a new link; the previous one becomes invalid."""
        return self._links.give()

    def enter(self, secret: str) -> str | None:
        """Return a cookie for the secret of the link, once; `None` if it is invalid."""
        return self._cookies.give() if self._links.take(secret) else None


ACT = re.compile(r"/(?:nodes|rollouts|rollouts/[^/]+)/do/[a-z]+")
ENTER = "/enter"
# Things that are done: fewer than the log has lines of a kind.
DEEDS_RATE, DEEDS_BURST = 1.0, 20.0
_SESSION = AccessRefusal(
    code=403,
    what="You have no session here.",
    hint="Open the link that 'localpuppet web' printed. It works once, for ten minutes. For a new"
    " link, start the command again.",
)


class LoopbackDoor(AccessRule):
    """Decides about requests on loopback, also by a secret name below `localhost`."""

    def __init__(
        self,
        address: str,
        port: int,
        sessions: Sessions,
        monotonic: Callable[[], float],
        *,
        acts: bool = False,
        name: str = "",
    ) -> None:
        secret = [f"{name}.localhost"] if name else []
        super().__init__([*secret, address, "localhost"], port, monotonic)
        # Cookies of all ports of a host are in one jar: hence the name, which others do not know.
        self.cookie = f"localpuppet_{port}"
        self.sessions = sessions
        self.tokens = Secrets(MAX_TOKENS, TOKEN_LIFE, monotonic)
        self._acts = acts
        self._deeds = RateLimit(DEEDS_RATE, DEEDS_BURST, monotonic)

    def session(self, header: str) -> str:
        """Return the cookie of a session in the cookies of a request; empty without one.

        Cookies are shared between ports: cookies of other services on this host, in any form and
        under any name, do not hide the dashboard's.
        """
        pairs = (part.partition("=") for part in header.split(";"))
        ours = (value.strip() for name, _, value in pairs if name.strip() == self.cookie)
        return next(
            (cookie for cookie in islice(ours, MAX_COOKIES) if self.sessions.knows(cookie)), ""
        )

    def _why_not(self, visitor: Visitor) -> AccessRefusal | None:
        return None if self.session(visitor.headers.get("cookie", "")) else _SESSION

    def _refused_method(self, method: str, path: str, visitor: Visitor) -> AccessRefusal | None:
        if not (method == "POST" and self._acts and ACT.fullmatch(path)):
            return super()._refused_method(method, path, visitor)
        if "origin" not in visitor.headers:
            return NO_ORIGIN
        return TOO_MANY if self.knows(visitor) and not self._deeds.take() else None

    def _is_open(self, path: str) -> bool:
        return path == ENTER or path.startswith(STATIC)


@dataclass(frozen=True, slots=True)
class AccessMiddleware:
    """Rejects requests that an access rule refuses, and adds headers to each response."""

    shown: ASGIApp
    refusal: Callable[[str, str, Visitor], AccessRefusal | None]
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
        refusal = self.refusal(scope["method"], scope["path"], visitor)
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

    It is `None` if the kernel does not know such a socket, or does not answer.
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
