"""What a node's history holds: run summaries and audit records, by day.

- Resources that Puppet did not touch are not listed. A summary lists the first
  `MAX_SUMMARY_RESOURCES`: failed ones, then corrective changes, changes, changes that noop
  foresees, and skipped ones.
- It has no values, and the limits of a run's end.
- A day is JSON, packed with zlib. A full day drops records: expendable ones first, then the oldest.
- A node has `SLOTS` keys for each kind; a day replaces the one eight days before.
- What another node signed is checked as strictly as damaged data: any bytes are a day, or an error.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import AllowedRange, JsonRecord, from_record, to_record
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import compact, parse_object
from localpuppet.base.formats.text import shortened
from localpuppet.base.value import Value
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.inventory.run_end import RunEnd, check_counts, check_texts
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.node.puppet.report import Resources
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.run import Category, Outcome

_ORDER = (
    ResourceResult.FAILED,
    ResourceResult.CHANGED,
    ResourceResult.WOULD_CHANGE,
    ResourceResult.SKIPPED,
)


class ResourceSummary(Value):
    """A resource that failed, changed, would change or was skipped.

    Attributes:
        title: The title if it is a plain name or path, else `…`.
        file: The file that declares it, from the module's directory on; empty if unknown.
        containing_class: The innermost class that contains it; empty if unknown.
    """

    type: str
    title: str
    status: ResourceResult
    file: str
    line: int | None
    corrective_change: bool
    containing_class: str = ""

    def __post_init__(self) -> None:
        check_texts(self)
        check_counts(self.line or 0)
        if self.status is ResourceResult.UNCHANGED:
            raise InvalidInputError("a resource that is unchanged has no summary")

    @property
    def resource(self) -> str:
        """Type and title; empty if unknown."""
        return f"{self.type}[{self.title}]" if self.type else ""

    @property
    def place(self) -> str:
        """File and line of the declaration; empty if unknown."""
        return place_of(self.file, self.line)

    @property
    def word(self) -> str:
        """The result in words."""
        return "corrected" if self.corrective_change else self.status.replace("_", " ")


def place_of(file: str, line: int | None) -> str:
    """Return a file and a line as one text; empty without a file."""
    return file if not file or line is None else f"{file}:{line}"


class RunCounts(Resources):
    """The numbers of resources by result."""

    corrective: int = 0

    def __post_init__(self) -> None:
        check_counts(self.total, self.changed, self.failed, self.skipped, self.out_of_sync)
        check_counts(self.corrective)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(RunEnd):
    """A finished run, or an apply refused before it had a record; failed resources first."""

    commit: str | None = None
    environment: str = ""
    cause: str
    counts: RunCounts = RunCounts()
    resources: tuple[ResourceSummary, ...] = ()
    more: int = 0

    def __post_init__(self) -> None:
        RunEnd.__post_init__(self)  # `super()` has no class in a dataclass with slots
        check_counts(self.more)
        if len(self.resources) > limits.MAX_SUMMARY_RESOURCES:
            raise InvalidInputError(f"has more than {limits.MAX_SUMMARY_RESOURCES} resources")

    @classmethod
    def of(cls, end: RunEnd, **more: Any) -> "RunSummary":  # noqa: ANN401 - the other fields
        """Return the summary of a run that ended so."""
        return cls(**_end(end), **more)

    @property
    def end(self) -> RunEnd:
        """What presence and lists of nodes have of it."""
        return RunEnd(**_end(self))

    @property
    def at(self) -> float:
        """Return when the run ended, which decides its day."""
        return self.finished_at

    @property
    def identity(self) -> str:
        """Return what a later version of the same record has in common with it."""
        return self.run

    @property
    def is_expendable(self) -> bool:
        """Whether a full day drops this record first: nothing changed, and nothing was to."""
        return self.outcome is Outcome.UNCHANGED and self.category is Category.NONE

    def within_limits(self, resources: Sequence[ResourceSummary]) -> "RunSummary":
        """Return this summary with as many of the resources as the limits allow."""
        listed = tuple(sorted(resources, key=_rank)[: limits.MAX_SUMMARY_RESOURCES])
        while True:
            more = len(resources) - len(listed)
            summary = replace(self, resources=listed, more=min(more, limits.MAX_RUN_COUNT))
            if not listed or packed_size(summary) <= limits.MAX_PACKED_SUMMARY:
                return summary
            listed = listed[: len(listed) * 3 // 4]


def _end(end: RunEnd) -> dict[str, Any]:
    return {field.name: getattr(end, field.name) for field in fields(RunEnd)}


def _rank(resource: ResourceSummary) -> tuple[int, bool]:
    return _ORDER.index(resource.status), not resource.corrective_change


def packed_size(record: object) -> int:
    """Return how many bytes a record takes alone, packed."""
    return len(zlib.compress(json.dumps(to_record(record)).encode()))


# The caller of a command on the node itself is this and the user's name. No signer has such a name.
LOCAL = "local="


class AuditDecision(StrEnum):
    """What a node decided about a request."""

    ACCEPTED = "accepted"
    REFUSED = "refused"


class AuditRecord(Value):
    """A request to a node, and the node's decision.

    Attributes:
        caller: The name whose key signed the request, or `LOCAL` and a user of the node.
        action: The action of the policy, such as `run` or `disable`.
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
        """Return the record of a command that a user ran on the node."""
        return cls(
            at=at,
            caller=shortened(LOCAL + user, limits.MAX_RUN_TEXT),
            action=action,
            subject=shortened(subject, limits.MAX_RUN_TEXT),
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


DAY = 86400.0
# Days on the bus: seven whole ones and today.
SLOTS = 8
_WHERE = "history"


R = TypeVar("R", bound=RunSummary | AuditRecord)


class HistoryKind(StrEnum):
    """A kind of history, as its keys and directories have it."""

    RUNS = "runs"
    AUDIT = "audit"


class HistoryForm(Value, Generic[R]):
    """What distinguishes a kind of history."""

    kind: HistoryKind
    record: type[R]
    message: MessageKind
    days: int


RUNS = HistoryForm(
    kind=HistoryKind.RUNS, record=RunSummary, message=MessageKind.RUN_HISTORY, days=SLOTS
)
AUDIT = HistoryForm(
    kind=HistoryKind.AUDIT, record=AuditRecord, message=MessageKind.AUDIT_HISTORY, days=90
)


class _DayHeader(JsonRecord):
    SCHEMA: ClassVar = 1
    node: NodeName
    day: Annotated[int, AllowedRange(minimum=0, maximum=limits.MAX_RUN_COUNT)]
    dropped: Annotated[int, AllowedRange(minimum=0, maximum=limits.MAX_RUN_COUNT)]
    records: Annotated[tuple[Any, ...], AllowedRange(maximum=limits.MAX_DAY_RECORDS)]


class HistoryDay(Value, Generic[R]):
    """A day of a node's history, counted from 1970, UTC: the oldest first, and how many dropped."""

    node: NodeName
    day: int
    records: tuple[R, ...]
    dropped: int

    def with_records(self, more: Iterable[R]) -> "HistoryDay[R]":
        """Return the day with further records; one with a known identity replaces the other."""
        known = {record.identity: record for record in (*self.records, *more)}
        records = tuple(sorted(known.values(), key=lambda record: record.at))
        return HistoryDay(node=self.node, day=self.day, records=records, dropped=self.dropped)

    def to_payload(self) -> bytes:
        """Return the packed day, without the records that exceed a limit."""
        records = [*self.records]
        while (packed := self._packed(records)) is None:
            expendable = (i for i, record in enumerate(records) if record.is_expendable)
            records.pop(next(expendable, 0))
        return packed

    def _packed(self, records: list[R]) -> bytes | None:
        """Return the packed day with some of its records; `None` if they are too many."""
        if len(records) > limits.MAX_DAY_RECORDS:
            return None
        header = _DayHeader(
            node=self.node,
            day=self.day,
            dropped=min(self.dropped + len(self.records) - len(records), limits.MAX_RUN_COUNT),
            records=tuple(map(to_record, records)),
        )
        text = compact(header.to_dict()).encode()
        packed = zlib.compress(text, 9)
        fits = len(text) <= limits.MAX_UNPACKED_DAY and len(packed) <= limits.MAX_PACKED_DAY
        values = sum(map(text.count, (b",", b"[", b"{")))  # or more, if titles have these
        return packed if fits and values < limits.MAX_DAY_VALUES else None


def parse_day(payload: bytes, form: HistoryForm[R]) -> HistoryDay[R]:
    if len(payload) > limits.MAX_PACKED_DAY:
        raise InvalidInputError(f"is larger than {limits.MAX_PACKED_DAY} bytes", where=_WHERE)
    try:
        text = unpacked(payload, most=limits.MAX_UNPACKED_DAY)
    except ValueError as error:
        raise InvalidInputError(str(error), where=_WHERE) from error
    raw = parse_object(
        text, where=_WHERE, limit=limits.MAX_UNPACKED_DAY, values=limits.MAX_DAY_VALUES
    )
    day = from_record(_DayHeader, raw, where=_WHERE)
    parsed = tuple(from_record(form.record, record) for record in day.records)
    if any(day_of(record.at) != day.day for record in parsed):
        raise InvalidInputError("has a record of another day", where=_WHERE)
    if len({record.identity for record in parsed}) != len(parsed):
        raise InvalidInputError("has a record twice", where=_WHERE)
    return HistoryDay(node=day.node, day=day.day, records=parsed, dropped=day.dropped)


def day_of(at: float) -> int:
    """Return the number of the UTC day of a time in seconds since 1970."""
    return int(at // DAY)


def history_key(node: NodeName, kind: HistoryKind, day: int) -> str:
    return f"{HISTORY}{node}/{kind}/{day % SLOTS}"
