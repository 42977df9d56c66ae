"""Triggers, changes, the causes of runs that they become, and the outcomes of these.

It is stored in inboxes and records, so its size is limited.

Example:
    `AnswerChange(query='servers_with_role("web")', how=ChangeKind.CHANGED, facts=("ipaddress",))`.

It parses the fields strictly, raises `InvalidInputError` for any other message, and has one
canonical form: `Trigger.parse(trigger.to_payload()) == trigger`. The fields `hostname` and `hosts`
have the names of puppet-trigger. `trigger_admission` decides whether a trigger is accepted.

- The cause of a trigger, or of another node's change, has the path along which it came, with that
  node last. Every other cause begins a chain and has no path.

An outcome answers a trigger if it is the trigger's own, or that of a trigger of the same sender to
the same node that replaced it and led to a run: the bus may keep only the newest trigger, and a
node publishes at most `MOST` outcomes.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, ClassVar

from localpuppet.base.errors import InvalidInputError, check_limit
from localpuppet.base.formats.converter import (
    AllowedRange,
    JsonRecord,
    Message,
    from_record,
    to_record,
)
from localpuppet.base.formats.names import NodeName, parse_tag, parse_uuid
from localpuppet.base.formats.schema_number import damage_errors
from localpuppet.base.formats.text import one_line, parse_line, shortened
from localpuppet.base.value import Value
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.fleet.inventory.outbox import AwaitedEntry


class ChangeKind(StrEnum):
    """How the node's part of the answer changed."""

    JOINED = "joined"  # the node is in the answer now
    LEFT = "left"  # the node is no longer in the answer
    CHANGED = "changed"  # the node's data in the answer changed
    ELSEWHERE = "elsewhere"  # the node is not in the answer; its published data changed


class AnswerChange(Value):
    """The change of one answer by one node; the query is in one line, cut if long."""

    query: str
    how: ChangeKind
    facts: tuple[str, ...] = ()

    @classmethod
    def of(cls, query: str, how: ChangeKind, facts: tuple[str, ...] = ()) -> "AnswerChange":
        """Return a change, truncated to its limits."""
        return cls(
            query=shortened(query, limits.MAX_CAUSE_QUERY),
            how=how,
            facts=tuple(
                one_line(fact)[: limits.MAX_CAUSE_QUERY] for fact in facts[: limits.MAX_CAUSE_FACTS]
            ),
        )


SCHEMA = 1
Tag = Annotated[str, parse_tag]


class Trigger(Message):
    """A trigger as sent: its types are valid, and nothing else is verified.

    `timestamp` is by the sender's clock, `ttl` counts from it, and `hops` is `len(path) - 1`.
    """

    SCHEMA: ClassVar = SCHEMA
    WHERE: ClassVar = "trigger"
    LIMIT: ClassVar = limits.MAX_TRIGGER
    hostname: NodeName
    tags: Annotated[tuple[Tag, ...], AllowedRange(maximum=limits.MAX_TRIGGER_TAGS)]
    hosts: Annotated[tuple[NodeName, ...], AllowedRange(maximum=limits.MAX_TRIGGER_HOSTS)]
    timestamp: int
    uuid: Annotated[str, parse_uuid]
    ttl: int
    hops: int
    # Longer paths are rejected by their hops; this bounds the work for a bad message.
    path: Annotated[tuple[NodeName, ...], AllowedRange(maximum=2 * (limits.MAX_HOPS + 1))]

    def to_payload(self) -> bytes:
        """Return the bytes to sign and send."""
        payload = super().to_payload()
        hint = f"name fewer of the {len(self.hosts)} hosts at a time"
        check_limit(len(payload), limits.MAX_TRIGGER, where=self.WHERE, hint=hint)
        return payload


class CauseKind(StrEnum):
    TRIGGER = "trigger"
    TIMER = "timer"
    MANUAL = "manual"
    REQUEST = "request"
    QUERY = "query"  # another node's published data changed an answer
    ROLLOUT = "rollout"  # a step of a rollout: it runs alone, and never twice
    CONFIRMATION = "confirmation"  # a deployment was not confirmed: return to the release before


_ALONG_A_PATH = (CauseKind.TRIGGER, CauseKind.QUERY)


class RunCause(Value):
    """One reason to run.

    Attributes:
        sender: The node that sent the trigger, the caller of the request, or the owner of the
            rollout's hold; otherwise this node.
        tags: The sender's description for people; they limit no run.
        path: The nodes along which a trigger came, the sender last; of a change, the changed node
            last; empty for other kinds.
        timestamp: When it was sent, by the sender's clock: seconds since 1970, UTC.
        expires: The last second at which it may wait for the end of a hold; `None` for no limit.
        awaited_entries: For kind `rollout`: the entries that the run waits for.
    """

    kind: CauseKind
    sender: Annotated[str, partial(parse_line, what="sender")]
    uuid: Annotated[str, parse_uuid]
    tags: tuple[Tag, ...] = ()
    path: tuple[NodeName, ...] = ()
    timestamp: int
    expires: int | None
    noop: bool = False
    puppet_tags: tuple[Tag, ...] = ()
    changes: tuple[AnswerChange, ...] = ()
    awaited_entries: tuple[AwaitedEntry, ...] = ()

    @classmethod
    def of_trigger(cls, trigger: Trigger) -> "RunCause":
        """Return the cause of an admitted trigger."""
        return cls(
            kind=CauseKind.TRIGGER,
            sender=trigger.hostname,
            uuid=trigger.uuid,
            tags=trigger.tags,
            path=trigger.path,
            timestamp=trigger.timestamp,
            expires=trigger.timestamp + trigger.ttl,
        )

    @property
    def id(self) -> str:
        """The key under which it is remembered.

        It includes the sender, so that no node can use up the ids of another.
        """
        return f"{self.sender}/{self.uuid}"

    def to_dict(self) -> dict[str, Any]:
        return to_record(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "RunCause":
        """Return the cause; raise `StateError` unless this version wrote it."""
        with damage_errors("cause"):
            cause = from_record(cls, raw)
            if (cause.kind in _ALONG_A_PATH) != bool(cause.path):
                raise ValueError("a trigger and a change have a path, and nothing else has one")
        return cause

    def __str__(self) -> str:
        """Return `trigger from web01.example.com`, `change of web01.example.com` or `timer`."""
        if self.kind is CauseKind.QUERY:
            return f"change of {self.path[-1]}"
        if self.kind in (CauseKind.TRIGGER, CauseKind.REQUEST):
            return f"{self.kind} from {self.sender}"
        if self.kind is CauseKind.ROLLOUT:
            return f"a step of {self.sender}"
        return str(self.kind)


MOST = 32
DROPPED = "dropped"
_GOOD = ("changed", "unchanged", "ended")  # the last is the outcome of a site's own command
INTERRUPTED = "interrupted"  # of a step of a rollout whose agent was killed


class TriggerOutcome(JsonRecord):
    """The outcome of a cause: that of the run, or `DROPPED` with a reason.

    `timestamp` is by its sender's clock.
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
        return replace(outcome, reason=shortened(reason, limits.MAX_CAUSE_REASON))

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

    `sent` has the time of each cause by its id.
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
