"""The access rules over TLS: names on one of the site's lists, with certificates of the CA.

- A certificate of the CA is not enough, because every node has one: its name must be on the list.
- No actions are possible.
- List and certificate are checked for each request and during streams: a removed or revoked person
  loses access at once.
"""

from collections.abc import Callable, Collection

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import SignerName
from localpuppet.web.access.rules import (
    METHODS,
    NO_METHOD,
    STATIC,
    UNAVAILABLE,
    AccessRefusal,
    RequestGate,
    Visitor,
    unlisted,
)

HTTPS = 443


class PeopleDoor:
    """Decides about requests of people with certificates.

    Args:
        names: The DNS names and addresses of the dashboard.
        port: The port.
        people: Returns the current list of people.
        holder: Returns the name in a certificate that TLS has accepted; raises if it is no longer
            valid.
        monotonic: The monotonic clock, seconds.
        setting: The key of the list in `localpuppet.yaml`.
        methods: The HTTP methods.
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
        """Return why a request is rejected, or `None`.

        Args:
            method: The HTTP method.
            path: The path of the URL.
            visitor: The visitor.
        """
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
