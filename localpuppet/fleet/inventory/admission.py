"""Accept or reject entries and tombstones from the bus: signature first, then form, then claims.

- Nothing is unpacked before its signature is verified.
- Any bytes result in an entry or in one printable line. The view checks that entries do not go back
  in time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
from localpuppet.fleet.trust.policy_file import read_policy, read_policy_file
from localpuppet.fleet.trust.signing import MessageKind, Verifier

if TYPE_CHECKING:
    # Commands that read no rows do not load SQLite.
    from localpuppet.fleet.inventory.tables import EntryRows


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRefusal:
    """A rejected entry or tombstone.

    Attributes:
        reason: Why, in one line.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEntry:
    """An entry from the bus.

    Attributes:
        node: The node at whose key it is.
        token: The message.
        found: Its rows, or why it was rejected.
        revision: The bus's revision of it.
    """

    node: str
    token: bytes
    found: "EntryRows | EntryRefusal"
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedEntry:
    """A node whose entry on the bus was rejected.

    Attributes:
        node: The node at whose key the entry is.
        reason: Why, in one line.
        since: Since when, in seconds since 1970, UTC.
    """

    node: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class EntryAdmission:
    """Decides which entries this node accepts.

    Attributes:
        verifier: Verifies signatures.
        claims: The path of `policies/inventory.policy`.
        policy: The path of `policies/puppet.policy`, which says who may forget nodes.
        now: Returns seconds since 1970, UTC.
    """

    verifier: Verifier
    _: KW_ONLY
    claims: Path
    policy: Path
    now: Callable[[], float]

    def entries(
        self, tokens: Mapping[str, bytes]
    ) -> Iterator[tuple[str, InventoryEntry | EntryRefusal]]:
        """Yield each node with the entry in its message, or why it is rejected.

        Args:
            tokens: The messages by the nodes at whose keys they are.
        """
        # All signatures first: that takes a seventh less, as it stays in the processor's caches.
        payloads = [(name, self._payload(name, token)) for name, token in tokens.items()]
        for name, payload in payloads:
            yield name, payload if isinstance(payload, EntryRefusal) else self._entry(name, payload)

    def _payload(self, name: str, token: bytes) -> bytes | EntryRefusal:
        try:
            signed = self.verifier.verify(token, MessageKind.INVENTORY)
        except LocalpuppetError as error:
            return EntryRefusal(reason=one_line(str(error)))
        if signed.signer != name:
            return EntryRefusal(reason=f"signed by {signed.signer}, but found at the key of {name}")
        return signed.payload

    def _entry(self, name: str, payload: bytes) -> InventoryEntry | EntryRefusal:
        try:
            entry = InventoryEntry.parse(payload)
            problem = refusal(entry, name, read_claims(self.claims))
        except LocalpuppetError as error:
            return EntryRefusal(reason=one_line(str(error)))
        if entry.at > self.now() + AHEAD:
            problem = problem or "has a timestamp in the future (check its node's clock)"
        return entry if problem is None else EntryRefusal(reason=problem)

    def distrust(self, name: str, token: bytes) -> str | None:
        """Return why an entry that was accepted is no longer trusted; `None` if it still is.

        Expired dates and unreadable local files do not remove trust.

        Args:
            name: The node at whose key the message was.
            token: The message.
        """
        try:
            payload = self.verifier.verify(token, MessageKind.INVENTORY).payload
            claims = read_claims(self.claims)
            return refusal(InventoryEntry.parse(payload), name, claims)
        except (NotInForceError, InvalidInputError):
            return None
        except IntegrityError as error:
            return one_line(str(error))

    def tombstone(self, name: str, token: bytes) -> tuple[Tombstone, SignerName] | EntryRefusal:
        """Return a tombstone and its signer, or why it is rejected.

        Args:
            name: The node at whose key the message is.
            token: The message.
        """
        try:
            signed = self.verifier.verify(token, MessageKind.TOMBSTONE)
            tombstone = Tombstone.parse(signed.payload)
            decision = decide(read_policy(self.policy), signed.signer.caller, "forget")
        except LocalpuppetError as error:
            return EntryRefusal(reason=one_line(str(error)))
        if tombstone.node != name:
            return EntryRefusal(reason=f"is about {tombstone.node}, but found at the key of {name}")
        if tombstone.at > self.now() + AHEAD:
            return EntryRefusal(reason="has a timestamp in the future (check its signer's clock)")
        return (
            (tombstone, signed.signer) if decision.allowed else EntryRefusal(reason=decision.reason)
        )


def read_claims(path: Path) -> ClaimPolicy | None:
    """Return the claim policy; `None` if the site has none.

    Raises:
        InvalidInputError: The file is invalid, or other users may write to it or its directory.
    """
    return read_policy_file(path, ClaimPolicy.parse)
