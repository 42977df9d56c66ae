"""A day of a node's history: the value of one key on the bus, and one file on the node's disk.

- A day is JSON, packed with zlib. A full day drops records: expendable ones first, then the oldest.
- A node has `SLOTS` keys for each kind; a day replaces the one eight days before.
- What another node signed is checked as strictly as damaged data: any bytes are a day, or an error.
"""

import zlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import AllowedRange, JsonRecord, from_record, to_record
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.value import Value
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.fleet.bus.bus_limits import MAX_RUN_COUNT
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.history.audit_record import AuditRecord
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.fleet.trust.signing import MessageKind

DAY = 86400.0
# Days on the bus: seven whole ones and today.
SLOTS = 8
_WHERE = "history"


class HistoryRecord(Protocol):
    """A record of a day."""

    @property
    def at(self) -> float:
        """Return seconds since 1970, UTC; they decide the day."""

    @property
    def identity(self) -> str:
        """Return what a later version of the same record has in common with it."""

    @property
    def is_expendable(self) -> bool:
        """Whether a full day drops the record first."""


R = TypeVar("R", bound=HistoryRecord)


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
    day: Annotated[int, AllowedRange(minimum=0, maximum=MAX_RUN_COUNT)]
    dropped: Annotated[int, AllowedRange(minimum=0, maximum=MAX_RUN_COUNT)]
    records: Annotated[tuple[Any, ...], AllowedRange(maximum=limits.MAX_DAY_RECORDS)]


class HistoryDay(Value, Generic[R]):
    """A day of a node's history.

    Attributes:
        day: The number of the day since 1970, UTC.
        records: The records, the oldest first.
        dropped: How many more did not fit.
    """

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
            dropped=min(self.dropped + len(self.records) - len(records), MAX_RUN_COUNT),
            records=tuple(map(to_record, records)),
        )
        text = compact(header.to_dict()).encode()
        packed = zlib.compress(text, 9)
        fits = len(text) <= limits.MAX_UNPACKED_DAY and len(packed) <= limits.MAX_PACKED_DAY
        values = sum(map(text.count, (b",", b"[", b"{")))  # or more, if titles have these
        return packed if fits and values < limits.MAX_DAY_VALUES else None


def parse_day(payload: bytes, form: HistoryForm[R]) -> HistoryDay[R]:
    """Return the day in a payload."""
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
    """Return the key of a day on the bus."""
    return f"{HISTORY}{node}/{kind}/{day % SLOTS}"
