"""An audit record: a request that a node accepted or refused, or a command on the node itself."""

from enum import StrEnum

from localpuppet.base.formats.text import shortened
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_RUN_TEXT
from localpuppet.fleet.inventory.run_end import check_counts, check_texts

# The caller of a command on the node itself is this and the user's name. No signer has such a name.
LOCAL = "local="


class AuditDecision(StrEnum):
    """What a node decided about a request."""

    ACCEPTED = "accepted"
    REFUSED = "refused"


class AuditRecord(Value):
    """A request to a node, and the node's decision.

    Attributes:
        at: When the node decided, in seconds since 1970, UTC.
        caller: The name whose key signed the request, or `LOCAL` and a user of the node.
        action: The action of the policy, such as `run` or `disable`.
        subject: What the request is about, in one line: a release, the message of a hold, a run.
        reason: Why the node refused the request; empty if it accepted.
        request: The id of the request; empty without one.
        times: How many equal requests in a row the record means.
    """

    at: float
    caller: str
    action: str
    subject: str
    decision: AuditDecision
    reason: str
    request: str
    times: int = 1

    def __post_init__(self) -> None:
        check_texts(self)
        check_counts(self.times)

    @classmethod
    def of_command(cls, user: str, action: str, subject: str, *, at: float) -> "AuditRecord":
        """Return the record of a command that a user ran on the node.

        Args:
            at: When it ran, in seconds since 1970, UTC.
        """
        return cls(
            at=at,
            caller=shortened(LOCAL + user, MAX_RUN_TEXT),
            action=action,
            subject=shortened(subject, MAX_RUN_TEXT),
            decision=AuditDecision.ACCEPTED,
            reason="",
            request="",
        )

    @property
    def identity(self) -> str:
        """Return what a later version of the same record has in common with it."""
        return f"{self.at} {self.request}"

    @property
    def is_expendable(self) -> bool:
        """Whether a full day drops this record first: the node refused the request."""
        return self.decision is AuditDecision.REFUSED
