"""Which requests come in: by method, Host, Origin, cookie and number.

Owns: the order of these questions, and the headers of every answer. Refuses to know: pages.

Invariants:

- Nothing but the style sheet, the script and the door itself is told to who has no session.
- Something is done only for a POST to an address of `ACT`, and only with our own Origin.
- A name that leads here is not enough (DNS rebinding): the Host must be the one that we listen on.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from localpuppet.web.sessions import Sessions, Tokens

METHODS = ("GET", "HEAD")
ACT = re.compile(r"/(?:nodes|rollouts)/[^/]+/do/[a-z]+")
ENTER = "/enter"
STATIC = "/static/"
# Cookies of our name that are looked at: services on other ports may set them, too.
MOST_COOKIES = 8
# Requests a second, and at once: of those with a session together, and of all others.
RATE, BURST = 500.0, 1000.0
STRANGERS_RATE, STRANGERS_BURST = 10.0, 60.0
# Things that are done: fewer than the log has lines of a kind.
DEEDS_RATE, DEEDS_BURST = 1.0, 20.0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request does not come in.

    Attributes:
        code: The HTTP status.
        what: What is wrong.
        hint: What to do.
    """

    code: int
    what: str
    hint: str


_METHOD = Refusal(code=405, what="Nothing can be done here.", hint="Use GET.")
_HOST = Refusal(
    code=403,
    what="The request names another host than the one that this page listens on.",
    hint="Open the address that 'localpuppet web' printed. Through a tunnel, use the same port on"
    " both sides.",
)
_ORIGIN = Refusal(
    code=403, what="The request comes from another site.", hint="Open this page by itself."
)
_SESSION = Refusal(
    code=403,
    what="You have no session here.",
    hint="Open the link that 'localpuppet web' printed: it is good once, for ten minutes. Start the"
    " command again for a new one.",
)
_RATE = Refusal(code=429, what="Too many requests.", hint="Wait a second.")


class Bucket:
    """How many requests may come: so many a second, and more at once after a pause.

    Args:
        rate: A second.
        burst: At once.
        monotonic: Seconds that only go forward.
    """

    def __init__(self, rate: float, burst: float, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._left = burst
        self._at = monotonic()

    def take(self) -> bool:
        """Take one; return whether there was one."""
        now = self._monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Doors:
    """Decides on requests.

    Args:
        address: Where we listen: `127.0.0.1`, `::1`.
        port: The port.
        sessions: Who may look.
        monotonic: Seconds that only go forward.
        acts: Whether something can be done here.
    """

    def __init__(
        self,
        address: str,
        port: int,
        sessions: Sessions,
        monotonic: Callable[[], float],
        *,
        acts: bool = False,
    ) -> None:
        shown = f"[{address}]" if ":" in address else address
        self.hosts = (f"{shown}:{port}", f"localhost:{port}")
        # Cookies of all ports of a host are in one jar.
        self.cookie = f"localpuppet_{port}"
        self.sessions = sessions
        self.tokens = Tokens(monotonic)
        self._acts = acts
        self._deeds = Bucket(DEEDS_RATE, DEEDS_BURST, monotonic)
        self._known = Bucket(RATE, BURST, monotonic)
        self._strangers = Bucket(STRANGERS_RATE, STRANGERS_BURST, monotonic)

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

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request does not come in; `None` where it does.

        Args:
            method: Of the request.
            path: Of its URL.
            headers: By name in lower case.
        """
        known = bool(self.session(headers.get("cookie", "")))
        if not (self._known if known else self._strangers).take():
            return _RATE
        if headers.get("host", "").lower() not in self.hosts:
            return _HOST
        origin = headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in self.hosts]:
            return _ORIGIN
        # A link on another site may lead here, and finds no cookie; what it embeds does not.
        cross = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if cross and headers.get("sec-fetch-mode") != "navigate":
            return _ORIGIN
        if method == "POST" and self._acts and ACT.fullmatch(path):
            if origin is None:
                return _ORIGIN
            if known and not self._deeds.take():
                return _RATE
        elif method not in METHODS:
            return _METHOD
        if known or path == ENTER or path.startswith(STATIC):
            return None
        return _SESSION
