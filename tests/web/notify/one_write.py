"""Each write of the ledger by itself: `python -m tests.web.notify.one_write DIR NAME`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from localpuppet.web.notify.notice_ledger import AT_ONCE, FILE, TRIED, NoticeLedger, SentStatus
from localpuppet.web.notify.routing import (
    ChannelSettings,
    ChannelType,
    Condition,
    Incident,
    IncidentKind,
    Route,
)

NOW = 1_795_000_000.0
STATUS = SentStatus(shown="success", problem="answered 500", at=NOW, taken=3)
ROUTES = [Route(name=name, channel=ChannelSettings(type=ChannelType.WEBHOOK)) for name in "xy"]
CHANNELS = [*"xy"]


def opened(*keys: str, closed: str = "") -> Mapping[str, Incident]:
    """Return incidents; those of `closed` are over."""
    return {
        key: Incident(
            condition=Condition(key=key, kind=IncidentKind.DRIFT, subject=key),
            seen_at=NOW,
            opened_at=NOW,
            closed_at=NOW + 1 if key in closed else None,
        )
        for key in keys
    }


def advance(after: Mapping[str, Incident], at: float = NOW) -> Callable[[NoticeLedger], object]:
    return lambda ledger: ledger.advance(lambda _: after, ROUTES, channels=CHANNELS, now=at)


MANY = [f"k{number}" for number in range(AT_ONCE + 1)]
WRITES: Mapping[str, Callable[[NoticeLedger], object]] = {
    "incidents open and close": advance(opened("a", "b", "c", closed="a")),
    "incidents are forgotten": advance({}),
    "many open together": advance(opened("a", "b", *MANY)),
    "old messages are dropped": advance(opened("a", "b", "c"), NOW + TRIED + 1),
    "a channel is new": lambda ledger: ledger.advance(
        lambda known: known,
        [Route(name="z", channel=ROUTES[0].channel)],
        channels=[*CHANNELS, "z"],
        now=NOW,
    ),
    "a channel was removed": lambda ledger: ledger.advance(
        lambda known: known, [], channels=["x"], now=NOW
    ),
    "a message is taken": lambda ledger: ledger.take_away(1),
    "another process has sent": lambda ledger: ledger.forget_before(NOW + 1),
    "a channel fails": lambda ledger: ledger.note("x", "answered 503", now=NOW),
    "a channel works again": lambda ledger: ledger.note("y", "", now=NOW),
    "a status is sent": lambda ledger: ledger.note_status("x", "7", STATUS),
    "a status is sent again": lambda ledger: ledger.note_status("y", "7", STATUS),
}


def ledger_of(directory: Path) -> NoticeLedger:
    ids = (f"msg_{number}" for number in range(1000))
    return NoticeLedger(directory / FILE, "production", "", lambda: 0.0, lambda: next(ids))


def prepare(directory: Path) -> None:
    """Write what each write begins with."""
    ledger = ledger_of(directory)
    advance(opened("a", "b"))(ledger)
    ledger.note("y", "answered 500", now=NOW)
    ledger.note_status("y", "7", SentStatus(shown="pending"))
    ledger.close()


if __name__ == "__main__":
    one = ledger_of(Path(sys.argv[1]))
    WRITES[sys.argv[2]](one)
    one.close()
