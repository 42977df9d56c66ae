"""A cause: what led to a run, as it is kept until the run is over and in the run's record.

Owns: the value and its strict JSON form. Refuses to know: how a cause came about, and files.

Invariants: `Cause.from_dict(cause.to_dict()) == cause`; the cause of a trigger, or of a change of
another node, has the path along which it came, that node last; every other cause is the beginning
of its chain and has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import NodeName, parse_tag, parse_uuid
from localpuppet.base.formats.text import parse_line
from localpuppet.fleet.inventory.awaited import Awaited
from localpuppet.fleet.triggers.change import Change
from localpuppet.fleet.triggers.trigger import Trigger


class CauseKind(StrEnum):
    """Where a cause comes from."""

    TRIGGER = "trigger"
    TIMER = "timer"
    MANUAL = "manual"
    REQUEST = "request"
    QUERY = "query"  # what another node says of itself changed an answer
    ROLLOUT = "rollout"  # a step of a rollout: it runs alone, and never twice
    CONFIRMATION = "confirmation"  # what was deployed is not confirmed: back to what ran before


_ALONG_A_PATH = (CauseKind.TRIGGER, CauseKind.QUERY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason to run.

    Attributes:
        kind: Where it comes from.
        sender: The node that sent the trigger, whoever made the request, the owner of the
            rollout's hold, else this node.
        uuid: Its id, unique for its sender.
        tags: What the sender says it is about; for people, they limit no run.
        path: The nodes along which a trigger came, the sender last, or a change, the node that
            changed last; empty for other kinds.
        timestamp: When it was sent, by the sender's clock: seconds since 1970, UTC.
        expires: The last second at which it may still wait for a hold to end; `None` for ever.
        noop: Whoever asked wants to see what would change, and nothing changed.
        puppet_tags: Puppet tags that limit the run, for whoever asked; empty for everything.
        changes: Of the kind `query`: which answers changed, and how.
        after: Of the kind `rollout`: the entries that the run waits for.
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
    changes: tuple[Change, ...] = ()
    after: tuple[Awaited, ...] = ()

    @classmethod
    def of_trigger(cls, trigger: Trigger) -> "Cause":
        """Return the cause that an admitted trigger is."""
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

        The sender is part of it, so that no node can use up the ids of another.
        """
        return f"{self.sender}/{self.uuid}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "kind": str(self.kind),
            "sender": str(self.sender),
            "uuid": self.uuid,
            "tags": list(self.tags),
            "path": [str(name) for name in self.path],
            "timestamp": self.timestamp,
            "expires": self.expires,
            "noop": self.noop,
            "only": list(self.puppet_tags),
            **({"changes": [one.to_dict() for one in self.changes]} if self.changes else {}),
            **({"after": [one.to_dict() for one in self.after]} if self.after else {}),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Cause":
        """Return the cause.

        Raises:
            StateError: It is not one that this version wrote.
        """
        try:
            if not all(isinstance(raw[key], list) for key in ("tags", "path", "only")):
                raise TypeError("tags, path and only must be lists")
            if not isinstance(raw["noop"], bool):
                raise TypeError("noop must be true or false")
            fields = {name: value for name, value in raw.items() if name != "only"}
            cause = cls(
                **{
                    **fields,
                    "kind": CauseKind(raw["kind"]),
                    "tags": tuple(parse_tag(tag, where="tags") for tag in raw["tags"]),
                    "path": tuple(NodeName.parse(name) for name in raw["path"]),
                    "puppet_tags": tuple(parse_tag(tag, where="only") for tag in raw["only"]),
                    "changes": tuple(Change.from_dict(one) for one in raw.get("changes", [])),
                    "after": tuple(Awaited.from_dict(one) for one in raw.get("after", [])),
                }
            )
            parse_line(cause.sender, what="sender")
            parse_uuid(cause.uuid, where="uuid")
            times = (cause.timestamp, 0 if cause.expires is None else cause.expires)
            if any(type(time) is not int for time in times):
                raise ValueError("timestamp and expires must be integers")
            if (cause.kind in _ALONG_A_PATH) != bool(cause.path):
                raise ValueError("a trigger and a change have a path, and nothing else has one")
        except (KeyError, TypeError, ValueError, AttributeError, InvalidInputError) as error:
            raise StateError(f"is damaged: {error}", where="cause") from error
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
