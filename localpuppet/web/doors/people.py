"""Who comes in over TLS: the people whom the site names, by the certificates that they have shown.

Owns: the order of the questions there. Refuses to know: what is in a certificate, where the names
are from, pages.

Invariants:

- A certificate of the CA is not enough: every node has one. Whom it names must be on the list.
- Nothing is done here, whoever asks.
- The list and the certificate are looked at for each request, and for what is sent on and on: who
  is taken from the list, or revoked, is out.
"""

from collections.abc import Callable, Collection

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import SignerName
from localpuppet.web.doors.rules import (
    METHODS,
    NO_METHOD,
    STATIC,
    Refusal,
    Threshold,
    Visitor,
)

HTTPS = 443


class PeopleDoor:
    """Decides on requests of people with certificates.

    Args:
        names: Under which the page is reached: DNS names, and addresses.
        port: The port.
        people: Returns who may look, now.
        holder: Returns whose a certificate is, which TLS has accepted, and refuses it where it does
            not count any more.
        monotonic: Seconds that only go forward.
    """

    def __init__(
        self,
        names: Collection[str],
        port: int,
        *,
        people: Callable[[], Collection[SignerName]],
        holder: Callable[[bytes], SignerName],
        monotonic: Callable[[], float],
    ) -> None:
        shown = [f"[{name}]" if ":" in name else name for name in names]
        self.hosts = tuple(f"{name}:{port}" for name in shown)
        if port == HTTPS:
            self.hosts = (*shown, *self.hosts)
        self._people = people
        self._holder = holder
        self._threshold = Threshold(self.hosts, "https", monotonic)

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"https://{self.hosts[0]}/"

    def knows(self, visitor: Visitor) -> bool:
        """Return whether somebody may look."""
        return self._why_not(visitor.certificate) is None

    def refusal(self, method: str, path: str, visitor: Visitor) -> Refusal | None:
        """Return why a request does not come in; `None` where it does.

        Args:
            method: Of the request.
            path: Of its URL.
            visitor: Who asks.
        """
        why = self._why_not(visitor.certificate)
        refused = self._threshold.refusal(visitor.headers, known=why is None)
        if refused is not None:
            return refused
        if method not in METHODS:
            return NO_METHOD
        return None if path.startswith(STATIC) else why

    def _why_not(self, certificate: bytes) -> Refusal | None:
        try:
            name = self._holder(certificate)
            if name in self._people():
                return None
        except InvalidInputError:
            # What is wrong with a file of this machine is not told to whoever connects.
            return Refusal(
                code=503,
                what="It cannot be told who may look: a file of this machine is refused.",
                hint="Whoever runs the page: 'localpuppet check' says which.",
            )
        except LocalpuppetError as error:
            return Refusal(code=403, what=f"You may not look: {error.what}.", hint=error.hint)
        return Refusal(
            code=403,
            what=f"You may not look: web.people does not name {name}.",
            hint="Whoever runs the page adds the name to web.people in localpuppet.yaml; that"
            " counts at once.",
        )
