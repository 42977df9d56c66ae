"""What became of causes, as a node tells others, and how a sender finds its own trigger in that.

Owns: how many are told, which of them, their JSON form. Refuses to know: the bus, runs.

Invariant: what is said to have ended a trigger is its own end, or that of a trigger of the same
sender to the same node that took its place and led to a run: the bus may keep only the newest, and
a node tells only of so many.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST = 32
DROPPED = "dropped"
_GOOD = ("changed", "unchanged", "ended")  # the last is that of a command of the site's
INTERRUPTED = "interrupted"  # of a step of a rollout whose agent was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerOutcome:
    """What became of a cause.

    Attributes:
        sender: Who sent it.
        uuid: Its id.
        timestamp: When it was sent, by its sender's clock: seconds since 1970.
        run: The run that it led to, if that has an id.
        outcome: How that ended; `DROPPED` where there was none.
    """

    sender: str
    uuid: str
    timestamp: int
    run: str | None
    outcome: str

    @classmethod
    def of_cause(
        cls, cause_id: str, timestamp: int, *, run: str | None, outcome: str
    ) -> "TriggerOutcome":
        """Return what became of the cause with an id (`Cause.id`)."""
        sender, _, uuid = cause_id.rpartition("/")
        return cls(sender=sender, uuid=uuid, timestamp=timestamp, run=run, outcome=outcome)

    @classmethod
    def from_dict(cls, raw: object) -> "TriggerOutcome | None":
        """Return what a node told; `None` where it is of another form (another version)."""
        if not isinstance(raw, Mapping):
            return None
        types = {"sender": str, "uuid": str, "timestamp": int, "outcome": str}
        if any(type(raw.get(key)) is not kind for key, kind in types.items()):
            return None
        if type(raw.get("run", ...)) not in (str, type(None)):
            return None
        return cls(**{key: raw[key] for key in cls.__slots__})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {key: getattr(self, key) for key in self.__slots__}

    def answers(self, *, sender: str, uuid: str, sent: range, idle: bool) -> bool:
        """Return whether it tells what became of a trigger.

        One that was sent later has taken its place. Of two in one second it is not known which did
        so, until the node has nothing to do any more and had the time to take either: what it does
        not have by then is not on the bus.

        Args:
            sender: Who sent it.
            uuid: Its id.
            sent: The seconds in which it may have been sent, by the sender's clock.
            idle: Whether the node has taken what there was for it, and is done with it.
        """
        if self.sender != sender:
            return False
        if self.uuid == uuid:
            return True
        placed = self.timestamp >= sent.stop or (idle and self.timestamp in sent)
        return placed and self.outcome != DROPPED


def succeeded(outcome: str) -> bool:
    """Return whether an outcome that a node tells is a success."""
    return outcome in _GOOD


def of_run(sent: Mapping[str, int], *, run: str | None, outcome: str) -> list[TriggerOutcome]:
    """Return what became of the causes of a run, at most `MOST`; of each sender the newest last.

    Args:
        sent: Id of each cause → when it was sent.
        run: Its id.
        outcome: How it ended.
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
