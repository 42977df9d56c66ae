"""Decide whether the agent accepts a signed message from the bus.

- The signature is checked over the same bytes that are parsed.
- `triggers.admission` has the rules for what a node accepts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from localpuppet.base.errors import IntegrityError, LocalpuppetError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.history.auditing import Auditor
from localpuppet.fleet.triggers.admission import (
    Admission,
    AdmittedTrigger,
    DroppedTrigger,
    UnsignedMessage,
)
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.trust.signing import MessageKind, Verifier, claimed_payload


@dataclass(frozen=True, slots=True)
class SignedAdmission:
    """Decides on signed messages from the bus.

    Attributes:
        admission: The rules for what the node accepts.
        verifier: Verifies signatures.
        clock: The node's clock.
        audit: Records what was decided.
    """

    admission: Admission
    verifier: Verifier
    clock: Clock
    audit: Auditor

    @property
    def me(self) -> NodeName:
        """Return the node's name."""
        return self.admission.me

    def admit(self, token: bytes) -> AdmittedTrigger | DroppedTrigger:
        """Decide on one message; a malformed message is dropped, not raised as an error."""
        try:
            payload = claimed_payload(token)
        except IntegrityError as error:
            return DroppedTrigger(reason=str(error))

        def signer() -> str | UnsignedMessage:
            try:
                signed = self.verifier.verify(token, MessageKind.TRIGGER)
            except LocalpuppetError as error:
                return UnsignedMessage(reason=str(error))
            if signed.payload != payload:
                return UnsignedMessage(reason="its bytes differ")
            return signed.signer

        return self.admission.admit(payload, now=self.clock.now().timestamp(), signer=signer)

    def record_accepted(self, cause: RunCause, *, problem: str) -> None:
        """Record a trigger that was admitted, and why it leads to no run, or empty."""
        self._record(cause.sender, cause.uuid, cause.tags, problem)

    def record_dropped(self, dropped: DroppedTrigger) -> None:
        """Record a trigger that was dropped, unless that is normal and frequent."""
        if dropped.quiet:
            return
        trigger = dropped.trigger if dropped.signed else None
        if trigger is None:
            self._record("", "", (), dropped.reason)
        else:
            self._record(trigger.hostname, trigger.uuid, trigger.tags, dropped.reason)

    def _record(self, sender: str, uuid: str, tags: Sequence[str], reason: str) -> None:
        caller = SignerName(sender).caller if sender else ""
        # Each run of a node may send the same trigger: with one record for each, those of a
        # day would fill it.
        self.audit.record(
            caller, "trigger", ", ".join(tags), reason=reason, request=uuid, repeats=True
        )
