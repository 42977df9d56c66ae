"""The head of a journal: what another machine needs to go on with a rollout.

- It is JSON, packed with zlib: at most `MAX_PACKED` bytes on the bus and `MAX_INFLATED` bytes
  unpacked.
- It holds all events, or none where they are too many: then only the machine that began can go on.
  Of a rollout that is over it holds none, and says so.
- It may lag behind the journal. What it does not say yet, nodes tell: who has taken a turn does not
  take it again.

Owns: the value and its form. Refuses to know: signatures, the bus.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.names import RolloutId
from localpuppet.formats.packed import unpacked
from localpuppet.formats.strict_json import loads
from localpuppet.orchestrator.rollout.event_forms import from_dict, to_dict
from localpuppet.orchestrator.rollout.events import Began, Event

MAX_PACKED = 320 * 1024
MAX_INFLATED = 16 * 1024 * 1024
SCHEMA = 1
_WHERE = "head of a rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a journal.

    Attributes:
        rollout: Whose.
        epoch: The newest that was begun, or claimed.
        events: What happened, the oldest first, each with its time; empty where there is no room.
        over: Whether nobody is to go on with it.
    """

    rollout: RolloutId
    epoch: int
    events: tuple[tuple[str, Event], ...]
    over: bool = False

    def to_payload(self) -> bytes:
        """Return the bytes that are signed."""
        for events in (self.events, ()):
            raw = {
                "schema": SCHEMA,
                "rollout": self.rollout,
                "epoch": self.epoch,
                "over": self.over,
                "events": [[at, to_dict(event)] for at, event in events],
            }
            data = json.dumps(raw, separators=(",", ":")).encode()
            packed = zlib.compress(data)
            if len(data) <= MAX_INFLATED and len(packed) <= MAX_PACKED:
                break
        return packed

    @classmethod
    def parse(cls, payload: bytes, *, caller: str) -> "Head":
        """Return the head in verified bytes.

        Args:
            payload: The bytes.
            caller: Whose rollout it is to be, a caller id.

        Raises:
            InvalidInputError: They are not a head, or one of another version.
        """
        raw = _inflated(payload)
        try:
            if raw["schema"] != SCHEMA or type(raw["epoch"]) is not int:
                raise ValueError("schema or epoch")
            head = cls(
                rollout=RolloutId.parse(raw["rollout"]),
                epoch=raw["epoch"],
                over=bool(raw["over"]),
                events=tuple((str(at), from_dict(event)) for at, event in raw["events"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, LocalpuppetError) as error:
            raise InvalidInputError(f"is malformed: {error}", where=_WHERE) from error
        if head.events:
            first = head.events[0][1]
            if not isinstance(first, Began) or (first.id, first.caller) != (head.rollout, caller):
                raise InvalidInputError(f"is not of a rollout of {caller}", where=_WHERE)
        return head


def _inflated(payload: bytes) -> Mapping[str, Any]:
    if len(payload) > MAX_PACKED:
        raise InvalidInputError(f"is larger than {MAX_PACKED} bytes", where=_WHERE)
    try:
        data = unpacked(payload, most=MAX_INFLATED)
    except ValueError as error:
        problem = "is malformed: not one whole zlib stream, or too large"
        raise InvalidInputError(problem, where=_WHERE) from error
    try:
        raw = loads(data)
    except ValueError as error:
        raise InvalidInputError(f"is malformed: {error}", where=_WHERE) from error
    if not isinstance(raw, dict):
        raise InvalidInputError("is malformed: not a mapping", where=_WHERE)
    return raw
