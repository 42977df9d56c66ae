"""Who comes in on loopback: a browser with the cookie that the link gave.

Owns: the order of the questions there. Refuses to know: pages.

Invariants:

- Nothing but the style sheet, the script and the door itself is told to who has no session.
- Something is done only for a POST to an address of `ACT`, and only with our own Origin.
"""

import re
from collections.abc import Callable
from itertools import islice

from localpuppet.web.doors.rules import (
    METHODS,
    NO_METHOD,
    NO_ORIGIN,
    STATIC,
    TOO_MANY,
    Bucket,
    Refusal,
    Threshold,
    Visitor,
)
from localpuppet.web.doors.sessions import Sessions, Tokens

ACT = re.compile(r"/(?:nodes|rollouts)/[^/]+/do/[a-z]+")
ENTER = "/enter"
# Cookies of our name that are looked at: services on other ports may set them, too.
MOST_COOKIES = 8
# Things that are done: fewer than the log has lines of a kind.
DEEDS_RATE, DEEDS_BURST = 1.0, 20.0

_SESSION = Refusal(
    code=403,
    what="You have no session here.",
    hint="Open the link that 'localpuppet web' printed: it is good once, for ten minutes. Start the"
    " command again for a new one.",
)


class LoopbackDoor:
    """Decides on requests.

    Args:
        address: Where we listen: `127.0.0.1`, `::1`.
        port: The port.
        sessions: Who may look.
        monotonic: Seconds that only go forward.
        acts: Whether something can be done here.
        name: A name below `localhost` that nobody can guess; empty where none leads here.
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
        self._deeds = Bucket(DEEDS_RATE, DEEDS_BURST, monotonic)
        self._threshold = Threshold(self.hosts, "http", monotonic)

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{self.hosts[0]}/"

    def session(self, header: str) -> str:
        """Return the cookie of a session; empty where there is none.

        Cookies know no ports: what other services of this host have set, in whatever form and
        under whatever name, hides ours from nobody.

        Args:
            header: All cookies of a request.
        """
        pairs = (part.partition("=") for part in header.split(";"))
        ours = (value.strip() for name, _, value in pairs if name.strip() == self.cookie)
        return next((one for one in islice(ours, MOST_COOKIES) if self.sessions.knows(one)), "")

    def knows(self, visitor: Visitor) -> bool:
        """Return whether somebody has a session."""
        return bool(self.session(visitor.headers.get("cookie", "")))

    def refusal(self, method: str, path: str, visitor: Visitor) -> Refusal | None:
        """Return why a request does not come in; `None` where it does.

        Args:
            method: Of the request.
            path: Of its URL.
            visitor: Who asks.
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
