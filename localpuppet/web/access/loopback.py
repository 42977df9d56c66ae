"""The access rules on loopback: a browser needs the cookie that the link gave.

- Without a session a client gets only the style sheet, the script and the entrance.
- An action requires a POST to an address of `ACT` with the dashboard's Origin.
"""

import re
from collections.abc import Callable
from itertools import islice

from localpuppet.web.access.rules import (
    METHODS,
    NO_METHOD,
    NO_ORIGIN,
    STATIC,
    TOO_MANY,
    AccessRefusal,
    RateLimit,
    RequestGate,
    Visitor,
)
from localpuppet.web.access.sessions import Sessions, Tokens

ACT = re.compile(r"/(?:nodes|rollouts|rollouts/[^/]+)/do/[a-z]+")
ENTER = "/enter"
# Cookies of the dashboard's name that are checked: services on other ports may set some.
MOST_COOKIES = 8
# Things that are done: fewer than the log has lines of a kind.
DEEDS_RATE, DEEDS_BURST = 1.0, 20.0

_SESSION = AccessRefusal(
    code=403,
    what="You have no session here.",
    hint="Open the link that 'localpuppet web' printed. It works once, for ten minutes. For a new"
    " link, start the command again.",
)


class LoopbackDoor:
    """Decides about requests on loopback.

    Args:
        address: The listening address: `127.0.0.1`, `::1`.
        port: The port.
        sessions: The sessions.
        monotonic: The monotonic clock, seconds.
        acts: Whether actions are enabled.
        name: A secret name below `localhost`, or empty.
    """

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
        self._deeds = RateLimit(DEEDS_RATE, DEEDS_BURST, monotonic)
        self._threshold = RequestGate(self.hosts, "http", monotonic)

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
            (cookie for cookie in islice(ours, MOST_COOKIES) if self.sessions.knows(cookie)), ""
        )

    def knows(self, visitor: Visitor) -> bool:
        """Return whether a visitor has a session."""
        return bool(self.session(visitor.headers.get("cookie", "")))

    def refusal(self, method: str, path: str, visitor: Visitor) -> AccessRefusal | None:
        """Return why a request is rejected, or `None`.

        Args:
            method: The HTTP method.
            path: The path of the URL.
            visitor: The visitor.
        """
        headers, known = visitor.headers, self.knows(visitor)
        refused = self._threshold.refusal(headers, known=known)
        if refused is not None:
            return refused
        if method == "POST" and self._acts and ACT.fullmatch(path):
            if "origin" not in headers:
                return NO_ORIGIN
            if known and not self._deeds.take():
                return TOO_MANY
        elif method not in METHODS:
            return NO_METHOD
        if known or path == ENTER or path.startswith(STATIC):
            return None
        return _SESSION
