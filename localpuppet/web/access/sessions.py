"""Sessions: a link that is valid once, and the cookie that it gives.

Only the SHA-256 of a secret is kept. The first use of a link ends it, even if the use is too late.
A token is valid once, for one purpose.
"""

import hashlib
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import make_private, write_durably
from localpuppet.fleet.trust.keys import read_private

LINK_LIFE = 600.0
SESSION_LIFE = 12 * 3600.0
# The oldest is forgotten for a new one.
MAX_SESSIONS = 32
TOKEN_LIFE = 600.0
MAX_TOKENS = 256
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

    Args:
        file: A file in a directory of this user.

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
    """The links and cookies of one server process.

    Args:
        monotonic: The monotonic clock, seconds.
    """

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
    """Tokens of the dashboard's pages, each for one action.

    Args:
        monotonic: The monotonic clock, seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._given: BoundedDict[bytes, float] = BoundedDict(MAX_TOKENS)

    def give(self, subject: str) -> str:
        """Return a new token.

        Args:
            subject: Its purpose: the session and the action.
        """
        token = secrets.token_urlsafe(BYTES)
        self._given[_digest(f"{token} {subject}")] = self._monotonic() + TOKEN_LIFE
        return token

    def take(self, token: str, subject: str) -> bool:
        """Return whether a token is valid for a purpose, and invalidate it."""
        ends = self._given.pop(_digest(f"{token} {subject}"), 0.0)
        return ends > self._monotonic()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).digest()
