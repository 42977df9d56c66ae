"""The table of audit records: filters, order and limits."""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from localpuppet.fleet.history.audit_record import AuditDecision, AuditRecord
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.tables import audit_table
from localpuppet.web.dashboard.tables.audit_table import AuditFilter, NodeAuditRecord

NOW = 1_795_000_000.0
ALL = AuditFilter()


def record(at: float, caller: str = "alice", **more: object) -> AuditRecord:
    one = AuditRecord(
        at=at,
        caller=caller,
        action="run",
        subject="web/tags/r1",
        decision=AuditDecision.ACCEPTED,
        reason="",
        request=f"{caller}-{at}",
    )
    return replace(one, **more)  # type: ignore[arg-type]


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(audit_table.TABLES)
    yield connection
    connection.close()


def audit(
    table: sqlite3.Connection, wanted: AuditFilter, *, limit: int
) -> Sequence[NodeAuditRecord]:
    asked = ListQuery(down=True).whole
    return audit_table.listed(table, asked, wanted, limit=limit).rows


def test_requests_come_newest_first_and_by_caller_or_node(table: sqlite3.Connection) -> None:
    audit_table.write(table, "web01", [record(NOW), record(NOW - 20, "bob")])
    audit_table.write(table, "web02", [record(NOW - 10, decision=AuditDecision.REFUSED)])
    found = audit(table, ALL, limit=9)
    assert [(one.node, one.record.caller) for one in found] == [
        ("web01", "alice"),
        ("web02", "alice"),
        ("web01", "bob"),
    ]
    assert found[1].record == record(NOW - 10, decision=AuditDecision.REFUSED)
    assert audit(table, AuditFilter(caller="bob"), limit=9) == found[2:]
    assert audit(table, AuditFilter(node="web02"), limit=9) == found[1:2]
    assert audit(table, AuditFilter(decision="refused"), limit=9) == found[1:2]
    assert audit(table, AuditFilter(action="run", node="web02"), limit=9) == found[1:2]
    assert audit(table, AuditFilter(action="deploy"), limit=9) == []
    assert audit(table, AuditFilter(text="tags/r1"), limit=1) == found[:1]
    assert audit(table, AuditFilter(text="tags/_1"), limit=1) == []


def test_a_record_names_the_rollout_of_its_request(table: sqlite3.Connection) -> None:
    rollout = "20261122T110000Z-0a1b"
    subjects = (f"rollout {rollout} step 3", f"rollout {rollout}, disk", "rollout x", "rollout", "")
    shown = [
        NodeAuditRecord(node="web01", record=record(NOW, subject=subject)).rollout
        for subject in subjects
    ]
    assert shown == [rollout, rollout, "", "", ""]


def test_a_repeated_record_replaces_the_earlier_record(table: sqlite3.Connection) -> None:
    for times in (1, 7):
        audit_table.write(table, "web01", [record(NOW, times=times)])
    assert [one.record.times for one in audit(table, ALL, limit=9)] == [7]


def test_old_records_and_those_beyond_a_number_are_deleted(table: sqlite3.Connection) -> None:
    audit_table.write(table, "web01", [record(NOW - second) for second in range(9)])
    audit_table.take_away(table, oldest=NOW - 6, most=9)
    assert len(audit(table, ALL, limit=9)) == 7
    audit_table.take_away(table, oldest=NOW - 6, most=3)
    assert [one.record.at for one in audit(table, ALL, limit=9)] == [
        NOW,
        NOW - 1,
        NOW - 2,
    ]
    some = [record(NOW - second) for second in range(audit_table.MOST_OF_ONE + 50)]
    audit_table.write(table, "web02", some)
    kept = audit(table, AuditFilter(node="web02"), limit=2 * len(some))
    assert [one.record for one in kept] == some[: audit_table.MOST_OF_ONE]
    assert len(audit(table, AuditFilter(node="web01"), limit=9)) == 3
