"""An audit record: a request that a node accepted or refused."""

from dataclasses import dataclass
from enum import StrEnum

from localpuppet.fleet.history.run_summary import check_counts, check_texts


class AuditDecision(StrEnum):
    """What a node decided about a request."""

    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A request to a node, and the node's decision.

    Attributes:
        at: When the node decided, in seconds since 1970, UTC.
        caller: The name whose key signed the request.
        action: The action of the policy, such as `run` or `disable`.
        subject: What the request is about, in one line: a release, the message of a hold, a run.
        decision: The decision.
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

    @property
    def identity(self) -> str:
        """Return what a later version of the same record has in common with it."""
        return f"{self.at} {self.request}"

    @property
    def is_expendable(self) -> bool:
        """Whether a full day drops this record first: the node refused the request."""
        return self.decision is AuditDecision.REFUSED
