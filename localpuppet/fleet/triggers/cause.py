"""A cause: the reason for a run, kept until the run is over and in the run's record.

- `RunCause.from_dict(cause.to_dict()) == cause`.
- The cause of a trigger, or of another node's change, has the path along which it came, with that
  node last. Every other cause begins a chain and has no path.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from localpuppet.base.formats.names import NodeName, parse_tag, parse_uuid
from localpuppet.base.formats.schema_number import damage_errors
from localpuppet.base.formats.text import parse_line
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.awaited_entry import AwaitedEntry
from localpuppet.fleet.triggers.change import AnswerChange
from localpuppet.fleet.triggers.trigger import Trigger


class CauseKind(StrEnum):
    """The origin of a cause."""

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
        kind: The origin.
        sender: The node that sent the trigger, the caller of the request, or the owner of the
            rollout's hold; otherwise this node.
        uuid: Its id, unique for its sender.
        tags: The sender's description for people; they limit no run.
        path: The nodes along which a trigger came, the sender last; of a change, the changed node
            last; empty for other kinds.
        timestamp: When it was sent, by the sender's clock: seconds since 1970, UTC.
        expires: The last second at which it may wait for the end of a hold; `None` for no limit.
        noop: Whether the run must only show what would change.
        puppet_tags: Puppet tags that limit the run; empty for everything.
        changes: For kind `query`: the changed answers.
        awaited_entries: For kind `rollout`: the entries that the run waits for.
    """

    kind: CauseKind
    sender: str
    uuid: str
    tags: tuple[str, ...] = ()
    path: tuple[NodeName, ...] = ()
    timestamp: int
    expires: int | None
    noop: bool = False
    puppet_tags: tuple[str, ...] = ()
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
        """Return the JSON form."""
        from localpuppet.base.formats.records import to_record

        return to_record(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "RunCause":
        """Return the cause.

        Raises:
            StateError: This version did not write the value.
        """
        from localpuppet.base.formats.records import from_record

        with damage_errors("cause"):
            cause = from_record(cls, raw)
            for tag in (*cause.tags, *cause.puppet_tags):
                parse_tag(tag, where="tags")
            parse_line(cause.sender, what="sender")
            parse_uuid(cause.uuid, where="uuid")
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
