"""Decide whether the agent accepts a signed message from the bus.

- The signature is checked over the same bytes that are parsed.
- `triggers.admission` has the rules for what a node accepts.
"""

from localpuppet.base.errors import IntegrityError, LocalpuppetError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.triggers.admission import (
    Admission,
    AdmittedTrigger,
    DroppedTrigger,
    UnsignedMessage,
)
from localpuppet.fleet.trust.signing import MessageKind, Verifier, claimed_payload


class SignedAdmission:
    """Decides on signed messages from the bus.

    Args:
        admission: The rules for what the node accepts.
        verifier: Verifies signatures.
        clock: The node's clock.
    """

    def __init__(self, admission: Admission, verifier: Verifier, clock: Clock) -> None:
        self._admission = admission
        self._verifier = verifier
        self._clock = clock

    @property
    def me(self) -> NodeName:
        """Return the node's name."""
        return self._admission.me

    def admit(self, token: bytes) -> AdmittedTrigger | DroppedTrigger:
        """Decide on one message; a malformed message is dropped, not raised as an error."""
        try:
            payload = claimed_payload(token)
        except IntegrityError as error:
            return DroppedTrigger(reason=str(error))

        def signer() -> str | UnsignedMessage:
            try:
                signed = self._verifier.verify(token, MessageKind.TRIGGER)
            except LocalpuppetError as error:
                return UnsignedMessage(reason=str(error))
            if signed.payload != payload:
                return UnsignedMessage(reason="its bytes differ")
            return signed.signer

        return self._admission.admit(payload, now=self._clock.now().timestamp(), signer=signer)
