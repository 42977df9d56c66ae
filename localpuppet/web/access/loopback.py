"""The access rules on loopback: a browser needs the cookie that the link gave.

Only the SHA-256 of a secret is kept. The first use of a link ends it, even if the use is too late.
A token is valid once, for one purpose.

- Without a session a client gets only the style sheet, the script and the entrance.
- An action requires a POST to an address of `ACT` with the dashboard's Origin.
"""

import hashlib
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import make_private, write_durably
from localpuppet.fleet.trust.key_files import read_private
from localpuppet.web.access import rules
from localpuppet.web.access.http_limits import MAX_COOKIES, MAX_SESSIONS, MAX_TOKENS

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

    Raises:
        StateError: The file cannot be written.
    """
    with suppress(InvalidInputError):
        name = read_private(file).decode("ascii", "replace").strip()
        if _NAME.fullmatch(name):
            return name
    name = host_name()
    make_private(file.parent)
    write_durably(file, f"{name}\n".encode())
    return name


class Sessions:
    """The links and cookies of one server process."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._link = b""
        self._link_ends = 0.0
        self._ends: BoundedDict[bytes, float] = BoundedDict(MAX_SESSIONS)

    def link(self) -> str:
        """Return the secret of a new link; the previous one becomes invalid."""
        secret = secrets.token_urlsafe(BYTES)
        self._link, self._link_ends = _digest(secret), self._monotonic() + LINK_LIFE
        return secret

    def enter(self, secret: str) -> str | None:
        """Return a cookie for the secret of the link; `None` if it is invalid."""
        good = secrets.compare_digest(_digest(secret), self._link)
        if not good:
            return None
        self._link = b""
        if self._monotonic() >= self._link_ends:
            return None
        cookie = secrets.token_urlsafe(BYTES)
        self._ends[_digest(cookie)] = self._monotonic() + SESSION_LIFE
        return cookie

    def knows(self, cookie: str) -> bool:
        """Return whether a cookie is valid."""
        # By its digest: how long the look-up takes says nothing of the cookie.
        return self._ends.get(_digest(cookie), 0.0) > self._monotonic()


class Tokens:
    """Tokens of the dashboard's pages, each for one action."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._given: BoundedDict[bytes, float] = BoundedDict(MAX_TOKENS)

    def give(self, subject: str) -> str:
        """Return a new token."""
        token = secrets.token_urlsafe(BYTES)
        self._given[_digest(f"{token} {subject}")] = self._monotonic() + TOKEN_LIFE
        return token

    def take(self, token: str, subject: str) -> bool:
        """Return whether a token is valid for a purpose, and invalidate it."""
        ends = self._given.pop(_digest(f"{token} {subject}"), 0.0)
        return ends > self._monotonic()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).digest()


ACT = re.compile(r"/(?:nodes|rollouts|rollouts/[^/]+)/do/[a-z]+")
ENTER = "/enter"
# Things that are done: fewer than the log has lines of a kind.
DEEDS_RATE, DEEDS_BURST = 1.0, 20.0

_SESSION = rules.AccessRefusal(
    code=403,
    what="You have no session here.",
    hint="Open the link that 'localpuppet web' printed. It works once, for ten minutes. For a new"
    " link, start the command again.",
)


class LoopbackDoor:
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
        shown = [f"[{address}]" if ":" in address else address, "localhost"]
        if name:
            shown.insert(0, f"{name}.localhost")
        self.hosts = tuple(f"{host}:{port}" for host in shown)
        # Cookies of all ports of a host are in one jar: hence the name, which others do not know.
        self.cookie = f"localpuppet_{port}"
        self.sessions = sessions
        self.tokens = Tokens(monotonic)
        self._acts = acts
        self._deeds = rules.RateLimit(DEEDS_RATE, DEEDS_BURST, monotonic)
        self._threshold = rules.RequestGate(self.hosts, "http", monotonic)

    @property
    def url(self) -> str:
        """Return the address of the dashboard."""
        return f"http://{self.hosts[0]}/"

    def session(self, header: str) -> str:
        """Return the cookie of a session; empty without one.

        Cookies are shared between ports: cookies of other services on this host, in any form and
        under any name, do not hide the dashboard's.

        Args:
            header: All cookies of a request.
        """
        pairs = (part.partition("=") for part in header.split(";"))
        ours = (value.strip() for name, _, value in pairs if name.strip() == self.cookie)
        return next(
            (cookie for cookie in islice(ours, MAX_COOKIES) if self.sessions.knows(cookie)), ""
        )

    def knows(self, visitor: rules.Visitor) -> bool:
        """Return whether a visitor has a session."""
        return bool(self.session(visitor.headers.get("cookie", "")))

    def refusal(self, method: str, path: str, visitor: rules.Visitor) -> rules.AccessRefusal | None:
        """Return why a request is rejected, or `None`."""
        headers, known = visitor.headers, self.knows(visitor)
        refused = self._threshold.refusal(headers, known=known)
        if refused is not None:
            return refused
        if method == "POST" and self._acts and ACT.fullmatch(path):
            if "origin" not in headers:
                return rules.NO_ORIGIN
            if known and not self._deeds.take():
                return rules.TOO_MANY
        elif method not in rules.METHODS:
            return rules.NO_METHOD
        if known or path == ENTER or path.startswith(rules.STATIC):
            return None
        return _SESSION
