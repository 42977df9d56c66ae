"""Who may look: a link that is good once, and the cookie that it gives.

Owns: how long each lives, and how many there are. Refuses to know: HTTP.

Invariants: no secret is kept, only its SHA-256; a link is used up by its first use, right or late;
a token is good once, for what it was given for.
"""

import hashlib
import secrets
from collections.abc import Callable

LINK_LIFE = 600.0
SESSION_LIFE = 12 * 3600.0
# The oldest is forgotten for a new one.
MAX_SESSIONS = 32
TOKEN_LIFE = 600.0
MAX_TOKENS = 256
BYTES = 32
# Of the name of a host: a label of 32 letters and digits.
NAME_BYTES = 16


def host_name() -> str:
    """Return a name for a host that nobody can guess."""
    return secrets.token_hex(NAME_BYTES)


class Sessions:
    """Links and cookies of one server; a new one knows none of them.

    Args:
        monotonic: Seconds that only go forward.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._link = b""
        self._link_ends = 0.0
        self._ends: dict[bytes, float] = {}

    def link(self) -> str:
        """Return the secret of a new link; the one before is good no more."""
        secret = secrets.token_urlsafe(BYTES)
        self._link, self._link_ends = _digest(secret), self._monotonic() + LINK_LIFE
        return secret

    def enter(self, secret: str) -> str | None:
        """Return a cookie for the secret of the link; `None` where it is not good."""
        good = secrets.compare_digest(_digest(secret), self._link)
        if not good:
            return None
        self._link = b""
        if self._monotonic() >= self._link_ends:
            return None
        while len(self._ends) >= MAX_SESSIONS:
            del self._ends[next(iter(self._ends))]
        cookie = secrets.token_urlsafe(BYTES)
        self._ends[_digest(cookie)] = self._monotonic() + SESSION_LIFE
        return cookie

    def knows(self, cookie: str) -> bool:
        """Return whether a cookie is one of ours, and its time is not over."""
        # By its digest: how long the look-up takes says nothing of the cookie.
        return self._ends.get(_digest(cookie), 0.0) > self._monotonic()


class Tokens:
    """Tokens that a page of ours gives for one thing to be done.

    Args:
        monotonic: Seconds that only go forward.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._given: dict[bytes, float] = {}

    def give(self, subject: str) -> str:
        """Return a new token.

        Args:
            subject: What it is for: the session, and what is to be done.
        """
        while len(self._given) >= MAX_TOKENS:
            del self._given[next(iter(self._given))]
        token = secrets.token_urlsafe(BYTES)
        self._given[_digest(f"{token} {subject}")] = self._monotonic() + TOKEN_LIFE
        return token

    def take(self, token: str, subject: str) -> bool:
        """Return whether a token is good for something; it is not any more then."""
        ends = self._given.pop(_digest(f"{token} {subject}"), 0.0)
        return ends > self._monotonic()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).digest()
