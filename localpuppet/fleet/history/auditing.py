"""Record the requests that a node decided, with limits for each caller.

- Equal refusals of a caller in a day are one record with a count, and so are equal requests of a
  rollout, which asks until a step is over. Other requests count only if they repeat the caller's
  last one, so that their order stays visible.
- A count is written whenever it has doubled: a flood of refused requests costs few writes.
- Beyond the limit of a day, all further requests of a caller are one record.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.text import shortened
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.fleet.bus.bus_limits import MAX_RUN_COUNT, MAX_RUN_TEXT
from localpuppet.fleet.history.audit_record import AuditDecision, AuditRecord
from localpuppet.fleet.history.day import day_of

# Records of one caller in a day. A day has 200 in all.
MAX_OF_CALLER = {AuditDecision.ACCEPTED: 60, AuditDecision.REFUSED: 15}
MAX_CALLERS = 1000
FURTHER = "further requests of this caller"
_Key = tuple[str, str, AuditDecision, str]


@dataclass(slots=True)
class _CallerDay:
    """The records of one caller today, the newest last."""

    records: dict[_Key, AuditRecord] = field(default_factory=dict)
    counts: Counter[AuditDecision] = field(default_factory=Counter)


class Auditor:
    """Records decisions.

    Args:
        append: Stores a record; one with a known identity replaces the earlier one.
        log: Receives the problem if a record cannot be stored: the request is decided anyway.
    """

    def __init__(self, append: Callable[[AuditRecord], None], clock: Clock, log: Log) -> None:
        self._append = append
        self._clock = clock
        self._log = log
        self._day = 0
        self._callers: BoundedDict[str, _CallerDay] = BoundedDict(MAX_CALLERS)

    def record(
        self, caller: str, action: str, subject: str, *, reason: str, request: str, repeats: bool
    ) -> None:
        """Record a decision.

        Args:
            caller: The verified caller; empty if the signature is not valid.
            action: The action; empty if the request could not be read.
            subject: What the request is about, without secrets.
            reason: Why the node refused it; empty if it accepted.
            request: The id of the request, or empty.
            repeats: Whether equal requests of the day are one record.
        """
        now = self._clock.now().timestamp()
        new = AuditRecord(
            at=now,
            caller=shortened(caller, MAX_RUN_TEXT),
            action=action,
            subject=shortened(subject, MAX_RUN_TEXT),
            decision=AuditDecision.REFUSED if reason else AuditDecision.ACCEPTED,
            reason=shortened(reason, MAX_RUN_TEXT),
            request=request,
        )
        day = self._counted(self._today(new), new, repeats=repeats or bool(reason))
        if day.times & (day.times - 1):
            return  # not a power of two
        try:
            self._append(day)
        except LocalpuppetError as error:
            self._log.warning(f"cannot record a request: {error}", kind=LineKind.REQUEST)

    def _today(self, record: AuditRecord) -> _CallerDay:
        if day_of(record.at) != self._day:
            self._day = day_of(record.at)
            self._callers.clear()
        day = self._callers.get(record.caller)
        if day is None:
            day = self._callers[record.caller] = _CallerDay()
        return day

    def _counted(self, day: _CallerDay, new: AuditRecord, *, repeats: bool) -> AuditRecord:
        """Return the new record, or the equal one of the day with its count."""
        key = _key(new)
        known = (
            day.records.get(key) if repeats or next(reversed(day.records), None) == key else None
        )
        if known is None:
            day.counts[new.decision] += 1
            if day.counts[new.decision] > MAX_OF_CALLER[new.decision]:
                reason = FURTHER if new.reason else ""
                new = replace(new, action="", subject=FURTHER, reason=reason, request="")
                key = _key(new)
                known = day.records.get(key)
        if known is not None:
            new = replace(known, times=min(known.times + 1, MAX_RUN_COUNT))
        day.records.pop(key, None)
        day.records[key] = new
        return new


def _key(record: AuditRecord) -> _Key:
    return record.action, record.subject, record.decision, record.reason
