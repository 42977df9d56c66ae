"""The access rule of plain HTTP on loopback: local users on a list, without a session.

- The kernel says which user a connection belongs to (`socket_owner`). If it does not know, the
  request is rejected.
- The Host must be loopback's, so that a site in a browser of such a user cannot read (DNS
  rebinding).
"""

from collections.abc import Callable, Collection

from localpuppet.base.errors import LocalpuppetError
from localpuppet.web.access.rules import (
    NO_METHOD,
    QUERY_METHODS,
    UNAVAILABLE,
    AccessRefusal,
    Ends,
    RequestGate,
    Visitor,
    unlisted,
)

_UNKNOWN = AccessRefusal(
    code=403,
    what="The user of this connection is unknown.",
    hint="Connect from a process on this machine, outside of a container.",
)


class LocalUserRule:
    """Decides about requests of users of this machine.

    Args:
        address: The listening address: `127.0.0.1`, `::1`.
        port: The port.
        users: Returns the current list: numbers of users.
        owner: Returns the user of a connection, from the addresses of both ends.
        monotonic: The monotonic clock, seconds.
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
