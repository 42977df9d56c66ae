"""What a node records of requests, and what a flood of them can do."""

from typing import Any

import pytest

from localpuppet.base.errors import StateError
from localpuppet.fleet.bus.bus_limits import MAX_RUN_TEXT
from localpuppet.fleet.history.history_records import DAY, AuditDecision, AuditRecord
from localpuppet.fleet.history.node_history import FURTHER, MAX_CALLERS, MAX_OF_CALLER, Auditor
from tests.doubles.ports import FakeClock, FakeLog


class Book:
    """An auditor and the records that are kept: the last version of each."""

    def __init__(self) -> None:
        self.clock, self.log = FakeClock(), FakeLog()
        self.kept: dict[str, AuditRecord] = {}
        self.writes = 0
        self.full = False
        self.auditor = Auditor(self._append, self.clock, self.log)

    def _append(self, record: AuditRecord) -> None:
        if self.full:
            raise StateError("no space left on device")
        self.writes += 1
        self.kept[record.identity] = record

    def ask(self, caller: str, action: str, subject: str = "", **more: Any) -> None:
        self.clock.advance(0.001)
        self.auditor.record(
            caller,
            action,
            subject,
            reason=more.get("reason", ""),
            request="",
            repeats=more.get("repeats", False),
        )

    def shown(self) -> list[str]:
        return [
            f"{one.caller} {one.action} {one.decision} {one.times}" for one in self.kept.values()
        ]


@pytest.fixture
def book() -> Book:
    return Book()


def test_the_order_of_requests_stays_visible_and_repeats_are_counted(book: Book) -> None:
    for action in ("disable", "enable", "disable", "disable"):
        book.ask("alice", action)
    book.ask("bob", "runonce", reason="denied")
    assert book.shown() == [
        "alice disable accepted 1",
        "alice enable accepted 1",
        "alice disable accepted 2",
        "bob runonce refused 1",
    ]
    for _ in range(3):
        book.ask("alice", "runonce", "step 1", repeats=True)
        book.ask("alice", "disable", "r", repeats=True)
    assert book.shown()[-2:] == ["alice runonce accepted 2", "alice disable accepted 2"]


def test_a_flood_of_refusals_is_few_records_and_few_writes(book: Book) -> None:
    book.ask("alice", "disable")
    for number in range(4096):
        book.ask("eve", "runonce", f"tag {number % 500}", reason="denied by policy")
        book.ask("mallory", "enable", reason="denied by policy")
    mine = [one for one in book.kept.values() if one.caller == "eve"]
    assert len(mine) == MAX_OF_CALLER[AuditDecision.REFUSED] + 1
    assert (mine[-1].subject, mine[-1].times) == (FURTHER, 2048)
    assert "mallory enable refused 4096" in book.shown()
    assert "alice disable accepted 1" in book.shown()
    assert book.writes < 150
    book.clock.advance(DAY)
    book.ask("eve", "runonce", "tag 1", reason="denied by policy")
    assert book.shown()[-1] == "eve runonce refused 1"


def test_many_requests_callers_and_long_texts_are_bounded(book: Book) -> None:
    for number in range(500):
        book.ask("ci", "deploy", f"apply r{number}")
    assert len(book.kept) == MAX_OF_CALLER[AuditDecision.ACCEPTED] + 1
    book.kept.clear()
    for number in range(MAX_CALLERS + 10):
        book.ask(f"c{number}", "runonce", "\u202e\n" * 1000, reason="x" * 1000)
    assert len(book.auditor._callers) == MAX_CALLERS
    record = next(iter(book.kept.values()))
    assert (len(record.subject), len(record.reason)) == (MAX_RUN_TEXT, MAX_RUN_TEXT)


def test_a_disk_that_is_full_stops_no_request(book: Book) -> None:
    book.full = True
    book.ask("alice", "disable")
    assert "cannot record a request: no space left" in book.log.text
