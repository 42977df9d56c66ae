"""The head of a journal: what another machine needs to go on with a rollout.

- It is JSON, packed with zlib: at most `MAX_PACKED` bytes on the bus and `MAX_INFLATED` bytes
  unpacked.
- It holds all events, or none where they are too many: then only the machine that began can go on.
  Of a rollout that is over it holds none, and says in short how that ended.
- It may lag behind the journal. What it does not say yet, nodes tell: who has taken a turn does not
  take it again.

Owns: the value and its form. Refuses to know: signatures, the bus.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import RolloutId
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import checked_time
from localpuppet.fleet.requests.rollout import MAX_EPOCH
from localpuppet.rollout.execution.event_forms import from_dict, to_dict
from localpuppet.rollout.execution.events import Began, Ending, Event, Fate
from localpuppet.rollout.execution.report import OPEN, Report

MAX_PACKED = 320 * 1024
MAX_INFLATED = 16 * 1024 * 1024
SCHEMA = 1
# Characters of a title and of a reason in a head of what is over.
MAX_TEXT = 200
_WHERE = "head of a rollout"
_COUNTED = frozenset((*Fate, OPEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a rollout ended, in short: which node ended how its journal knows.

    Attributes:
        title: What was rolled out, one line, cut off.
        ending: Why it is over.
        why: One line more, cut off; empty where there is nothing to say.
        began: When it began, ISO 8601.
        ended: When it was over.
        noop: Whether it changed nothing.
        counts: How many nodes ended how, as `Report.counts` returns it.
    """

    title: str
    ending: Ending
    why: str
    began: str
    ended: str
    noop: bool
    counts: Mapping[str, int]

    @classmethod
    def of(cls, report: Report) -> "Summary | None":
        """Return how a rollout ended; `None` where it is not over."""
        over = report.state.over
        if over is None or report.ended is None:
            return None
        return cls(
            title=_cut(report.state.began.title),
            ending=over.ending,
            why=_cut(report.why),
            began=report.began,
            ended=report.ended,
            noop=report.state.began.options.noop,
            counts=report.counts(),
        )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Summary":
        """Return the summary; whatever else is there is passed over.

        Raises:
            KeyError: A field is missing.
            ValueError: A field is not of its form.
        """
        counts = cast("Mapping[str, Any]", raw["counts"])
        if not isinstance(counts, dict) or not _COUNTED.issuperset(counts):
            raise ValueError("counts")
        if any(type(count) is not int or count < 0 for count in counts.values()):
            raise ValueError("counts")
        if type(raw["noop"]) is not bool:
            raise ValueError("noop")
        return cls(
            title=_cut(raw["title"]),
            ending=Ending(raw["ending"]),
            why=_cut(raw["why"]),
            began=checked_time(raw["began"]),
            ended=checked_time(raw["ended"]),
            noop=raw["noop"],
            counts=dict(counts),
        )

    @property
    def succeeded(self) -> bool:
        """Whether every node succeeded."""
        return set(self.counts) == {Fate.SUCCEEDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a journal.

    Attributes:
        rollout: Whose.
        epoch: The newest that was begun, or claimed.
        events: What happened, the oldest first, each with its time; empty where there is no room.
        over: Whether nobody is to go on with it.
        summary: How it ended; `None` where it is not over, and where an earlier version wrote that.
    """

    rollout: RolloutId
    epoch: int
    events: tuple[tuple[str, Event], ...]
    over: bool = False
    summary: Summary | None = None

    def to_payload(self) -> bytes:
        """Return the bytes that are signed."""
        for events in (self.events, ()):
            raw = {
                "schema": SCHEMA,
                "rollout": self.rollout,
                "epoch": self.epoch,
                "over": self.over,
                "summary": None if self.summary is None else asdict(self.summary),
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
            InvalidInputError: They are not a head, or one of another version, or tell what cannot
                have happened.
        """
        raw = _inflated(payload)
        try:
            if raw["schema"] != SCHEMA:
                raise ValueError("schema")
            if type(raw["epoch"]) is not int or not 1 <= raw["epoch"] < MAX_EPOCH:
                raise ValueError("epoch")
            summary = raw.get("summary")
            if type(raw["over"]) is not bool or (summary is not None and not raw["over"]):
                raise ValueError("over")
            head = cls(
                rollout=RolloutId.parse(raw["rollout"]),
                epoch=raw["epoch"],
                over=raw["over"],
                summary=None if summary is None else Summary.from_dict(summary),
                events=tuple((checked_time(at), from_dict(event)) for at, event in raw["events"]),
            )
            if head.events:  # they may tell what cannot have happened
                told = Report.of(head.events, taken=True)
                if told.state.epoch > head.epoch:
                    raise ValueError("epoch of an event")
        except (KeyError, TypeError, ValueError, AttributeError, LocalpuppetError) as error:
            raise InvalidInputError(f"is malformed: {error}", where=_WHERE) from error
        if head.events:
            first = head.events[0][1]
            if not isinstance(first, Began) or (first.id, first.caller) != (head.rollout, caller):
                raise InvalidInputError(f"is not of a rollout of {caller}", where=_WHERE)
        return head


def _cut(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


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
