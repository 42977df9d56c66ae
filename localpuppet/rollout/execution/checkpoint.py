"""A rollout checkpoint: what another machine needs to continue a rollout.

- It is JSON, packed with zlib: at most `MAX_PACKED` bytes on the bus and `MAX_INFLATED` bytes
  unpacked.
- It holds all events. If they are too many it holds none, and only the machine with the journal
  can continue. For a finished rollout it holds a summary instead.
- It may lag behind the journal. Nodes fill the gap: a node that ran once for a step does not run
  again for it.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import RolloutId
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.times import checked_time
from localpuppet.base.value import Value
from localpuppet.fleet.requests.arguments import MAX_EPOCH
from localpuppet.rollout.execution.events import (
    Event,
    RolloutBegan,
    RolloutEnding,
    from_dict,
    to_dict,
)
from localpuppet.rollout.execution.progress_states import ProgressState, word_of_ending
from localpuppet.rollout.execution.report import RolloutReport

MAX_PACKED = 320 * 1024
MAX_INFLATED = 16 * 1024 * 1024
SCHEMA = 1
# Characters of a title and of a reason in a summary.
MAX_TEXT = 200
_WHERE = "rollout checkpoint"
_COUNTED = frozenset(ProgressState)


class Summary(Value):
    """The end of a rollout in short; the results of single nodes are in its journal.

    Attributes:
        started_at: When it began, ISO 8601.
        finished_at: When it ended, ISO 8601.
        counts: State → number of nodes, as in `RolloutReport.counts`.
        release: The release that it delivered, or empty.
    """

    title: str
    ending: RolloutEnding
    reason: str
    started_at: str
    finished_at: str
    noop: bool
    counts: Mapping[str, int]
    release: str

    @classmethod
    def of(cls, report: RolloutReport) -> "Summary | None":
        """Return the summary of a rollout; `None` if it is not over."""
        over = report.state.over
        if over is None or report.ended is None:
            return None
        return cls(
            title=shortened(report.state.began.title, MAX_TEXT),
            ending=over.ending,
            reason=shortened(report.why, MAX_TEXT),
            started_at=report.began,
            finished_at=report.ended,
            noop=report.state.began.options.noop,
            counts=report.counts(),
            release=report.release,
        )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Summary":
        """Return a summary from its JSON form; unknown fields are ignored.

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
            title=shortened(raw["title"], MAX_TEXT),
            ending=RolloutEnding(raw["ending"]),
            reason=shortened(raw["reason"], MAX_TEXT),
            started_at=checked_time(raw["started_at"]),
            finished_at=checked_time(raw["finished_at"]),
            noop=raw["noop"],
            counts=dict(counts),
            release=shortened(raw["release"], MAX_TEXT),
        )

    def to_dict(self, rollout: RolloutId, epoch: int) -> dict[str, Any]:
        """Return the JSON form of `RolloutReport.summary`, without the caller."""
        return {
            "id": rollout,
            "title": self.title,
            "release": self.release,
            "state": self.word,
            "reason": self.reason,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "epoch": epoch,
            "noop": self.noop,
            "succeeded": self.succeeded,
            "counts": dict(self.counts),
            "waits_for": [],
        }

    @property
    def word(self) -> str:
        """Why it is over, in words."""
        return word_of_ending(self.ending, self.counts)

    @property
    def succeeded(self) -> bool:
        """Whether every node succeeded."""
        return set(self.counts) == {ProgressState.DONE}


class RolloutCheckpoint(Value):
    """A rollout checkpoint.

    Attributes:
        epoch: The newest epoch that began or was claimed.
        events: The events with their times, the oldest first; empty if they are too large.
        over: Whether the rollout cannot be resumed.
        summary: The end of the rollout; `None` before that.
    """

    rollout: RolloutId
    epoch: int
    events: tuple[tuple[str, Event], ...]
    over: bool = False
    summary: Summary | None = None

    def to_payload(self) -> bytes:
        """Return the bytes to sign."""
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
    def parse(cls, payload: bytes, *, caller: str) -> "RolloutCheckpoint":
        """Return the checkpoint in verified bytes.

        Args:
            payload: The bytes.
            caller: The caller id that the rollout must have.

        Raises:
            InvalidInputError: The bytes are not a checkpoint of this version and caller, or their
                events contradict each other.
        """
        raw = _inflated(payload)
        try:
            check_schema(raw, SCHEMA)
            if type(raw["epoch"]) is not int or not 1 <= raw["epoch"] < MAX_EPOCH:
                raise ValueError("epoch")
            summary = raw["summary"]
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
                report = RolloutReport.of(head.events, taken=True)
                if report.state.epoch > head.epoch:
                    raise ValueError("epoch of an event")
        except (KeyError, TypeError, ValueError, AttributeError, LocalpuppetError) as error:
            raise InvalidInputError(f"is malformed: {error}", where=_WHERE) from error
        if head.events:
            first = head.events[0][1]
            if not isinstance(first, RolloutBegan) or (first.id, first.caller) != (
                head.rollout,
                caller,
            ):
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
