"""Outcomes of causes, as a node publishes them, and how a sender finds its own trigger among them.

An outcome answers a trigger if it is the trigger's own, or that of a trigger of the same sender to
the same node that replaced it and led to a run: the bus may keep only the newest trigger, and a
node publishes at most `MOST` outcomes.
"""

from collections.abc import Mapping
from dataclasses import replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.records import JsonRecord, from_record
from localpuppet.base.formats.text import shortened

MOST = 32
MAX_REASON = 300  # characters
DROPPED = "dropped"
_GOOD = ("changed", "unchanged", "ended")  # the last is the outcome of a site's own command
INTERRUPTED = "interrupted"  # of a step of a rollout whose agent was killed


class TriggerOutcome(JsonRecord):
    """The outcome of a cause.

    Attributes:
        sender: The sender of the cause.
        uuid: Its id.
        timestamp: When it was sent, by its sender's clock: seconds since 1970.
        run: The run that it led to, if that has an id.
        outcome: The outcome of that run; `DROPPED` without a run.
        reason: Why the node dropped it, one line; empty otherwise.
    """

    sender: str
    uuid: str
    timestamp: int
    run: str | None
    outcome: str
    reason: str = ""

    @classmethod
    def of_cause(
        cls, cause_id: str, timestamp: int, *, run: str | None, outcome: str
    ) -> "TriggerOutcome":
        """Return the outcome of the cause with an id (`RunCause.id`)."""
        sender, _, uuid = cause_id.rpartition("/")
        return cls(sender=sender, uuid=uuid, timestamp=timestamp, run=run, outcome=outcome)

    @classmethod
    def dropped(cls, cause_id: str, reason: str) -> "TriggerOutcome":
        """Return the outcome of a cause that leads to no run."""
        outcome = cls.of_cause(cause_id, 0, run=None, outcome=DROPPED)
        return replace(outcome, reason=shortened(reason, MAX_REASON))

    @classmethod
    def of_published(cls, raw: object) -> "TriggerOutcome | None":
        """Return a published outcome; `None` if it has another form (another version)."""
        try:
            return from_record(cls, raw)
        except InvalidInputError:
            return None

    def answers(self, *, sender: str, uuid: str, sent: range, idle: bool) -> bool:
        """Return whether this is the outcome of a trigger.

        A later trigger of the same sender has replaced it. Of two in one second, it is unknown
        which replaced the other until the node is idle and had the time to receive both.

        Args:
            sender: Its sender.
            uuid: Its id.
            sent: The seconds in which it may have been sent, by the sender's clock.
            idle: Whether the node has received and finished everything sent to it.
        """
        if self.sender != sender:
            return False
        if self.uuid == uuid:
            return True
        placed = self.timestamp >= sent.stop or (idle and self.timestamp in sent)
        return placed and self.outcome != DROPPED


def succeeded(outcome: str) -> bool:
    """Return whether a published outcome is a success."""
    return outcome in _GOOD


def of_run(sent: Mapping[str, int], *, run: str | None, outcome: str) -> list[TriggerOutcome]:
    """Return the outcomes of a run's causes, at most `MOST`, the newest of each sender last.

    Args:
        sent: Id of each cause → when it was sent.
        run: The run's id.
        outcome: The run's outcome.
    """
    newest: dict[str, str] = {}
    for cause_id, timestamp in sent.items():
        sender = cause_id.rpartition("/")[0]
        if sender not in newest or timestamp >= sent[newest[sender]]:
            newest[sender] = cause_id
    last = set(newest.values())
    ordered = sorted(sent, key=lambda cause_id: cause_id in last)
    return [
        TriggerOutcome.of_cause(cause_id, sent[cause_id], run=run, outcome=outcome)
        for cause_id in ordered[-MOST:]
    ]
