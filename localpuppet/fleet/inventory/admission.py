"""Which entries and tombstones from the bus count.

Owns: the order of the checks: signature, form, claims. Refuses to know: what was seen before (the
view), the bus.

Invariants: nothing is unpacked before its signature holds; whatever the bytes are, the answer is an
entry or one printable line.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    NotInForceError,
)
from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.inventory.claims import ClaimPolicy, refusal
from localpuppet.fleet.inventory.entry import AHEAD, InventoryEntry
from localpuppet.fleet.inventory.tombstone import Tombstone
from localpuppet.fleet.trust.policy import decide
from localpuppet.fleet.trust.policy_file import policy_bytes, read_policy
from localpuppet.fleet.trust.signing import MessageKind, Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What does not count.

    Attributes:
        reason: Why, in one line.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A node of which the bus holds an entry that does not count.

    Attributes:
        node: At whose key it stands.
        reason: Why, in one line.
        since: Since when: seconds since 1970, UTC.
    """

    node: str
    reason: str
    since: float


class EntryAdmission:
    """Tells what counts on this node.

    Args:
        verifier: Tells whose signatures hold.
        claims: `policies/inventory.policy`.
        policy: `policies/puppet.policy`: who may have nodes forgotten.
        now: Seconds since 1970, UTC.
    """

    def __init__(
        self, verifier: Verifier, *, claims: Path, policy: Path, now: Callable[[], float]
    ) -> None:
        self._verifier = verifier
        self._claims = claims
        self._policy = policy
        self._now = now

    def entry(self, name: str, token: bytes) -> InventoryEntry | Refusal:
        """Return the entry in a message, or why it does not count.

        Args:
            name: The node at whose key it stands.
            token: The message.
        """
        try:
            signed = self._verifier.verify(token, MessageKind.INVENTORY)
        except LocalpuppetError as error:
            return Refusal(reason=one_line(str(error)))
        if signed.signer != name:
            return Refusal(reason=f"signed by {signed.signer}, and stands at the key of {name}")
        try:
            entry = InventoryEntry.parse(signed.payload)
            problem = refusal(entry, signed.signer, read_claims(self._claims))
        except LocalpuppetError as error:
            return Refusal(reason=one_line(str(error)))
        if entry.at > self._now() + AHEAD:
            problem = problem or "is from the future: is its node's clock right?"
        return entry if problem is None else Refusal(reason=problem)

    def distrust(self, name: str, token: bytes) -> str | None:
        """Return why an entry that was believed once is not any more; `None` if it still is.

        Dates that have passed, and files of ours that cannot be read, take nobody's trust away.

        Args:
            name: The node at whose key it stood.
            token: The message.
        """
        try:
            payload = self._verifier.verify(token, MessageKind.INVENTORY).payload
            claims = read_claims(self._claims)
            return refusal(InventoryEntry.parse(payload), name, claims)
        except (NotInForceError, InvalidInputError):
            return None
        except IntegrityError as error:
            return one_line(str(error))

    def tombstone(self, name: str, token: bytes) -> tuple[Tombstone, SignerName] | Refusal:
        """Return a tombstone and who signed it, or why it does not count.

        Args:
            name: The node at whose key it stands.
            token: The message.
        """
        try:
            signed = self._verifier.verify(token, MessageKind.FORGOTTEN)
            found = Tombstone.parse(signed.payload)
            decision = decide(read_policy(self._policy), signed.signer.caller, "forget")
        except LocalpuppetError as error:
            return Refusal(reason=one_line(str(error)))
        if found.node != name:
            return Refusal(reason=f"is about {found.node}, and stands at the key of {name}")
        if found.at > self._now() + AHEAD:
            return Refusal(reason="is from the future: is its signer's clock right?")
        return (found, signed.signer) if decision.allowed else Refusal(reason=decision.reason)


def read_claims(path: Path) -> ClaimPolicy | None:
    """Return who may claim what; `None` where the site does not say.

    Raises:
        InvalidInputError: The file is refused, or others could write to it or its directory.
    """
    data = policy_bytes(path)
    return None if data is None else _parsed(data, str(path))


@functools.lru_cache(maxsize=1)
def _parsed(data: bytes, where: str) -> ClaimPolicy:
    """Return the policy in these bytes, which seldom are others than the last time."""
    return ClaimPolicy.parse(data, where=where)
