"""Answers for clients of PuppetDB's API: every entity, paging, totals, and rows from a source."""

import json
from typing import Any

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.answering import answer
from localpuppet.fleet.inventory.query.client_query import parse_client_query
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.query.tree import Entity
from tests.doubles.records import MemoryRecords
from tests.fleet.inventory.query.fleet import inventory


def report(name: str, hour: int, status: str, **more: Json) -> dict[str, Json]:
    return {
        "certname": f"{name}.example.com",
        "hash": f"{name}-{hour}",
        "end_time": f"2026-11-23T{hour:02}:00:00.000Z",
        "status": status,
        "environment": "production",
        "noop": False,
        "latest_report?": hour == 9,
        "report_format": hour,
        **more,
    }


REPORTS = [
    report("db01", 8, "changed"),
    report("db01", 9, "failed"),
    report("web01", 7, "unchanged", environment="testing"),
    report("web01", 9, "changed"),
]
NODES: list[dict[str, Json]] = [
    {
        "certname": f"{name}.example.com",
        "latest_report_status": status,
        "latest_report_hash": f"{name}-9",
        "report_timestamp": f"2026-11-23T{hour}:00:00.000Z",
    }
    for name, status, hour in (
        ("aa01", "failed", "05"),
        ("db01", "failed", "09"),
        ("web01", "changed", "08"),
        ("zz01", "failed", "07"),
    )
]


def records(*, cuts: bool = False) -> MemoryRecords:
    return MemoryRecords({Entity.REPORTS: REPORTS, Entity.NODES: NODES}, cuts=cuts)


def ask(
    parameters: dict[str, Json], entity: Entity | None = None, source: RecordSource | None = None
) -> tuple[list[Any], int | None]:
    """Return the rows for a request, and their total."""
    query = parse_client_query(parameters, entity)
    found = answer(query.select, reader=inventory(), records=source, total=query.total)
    return [json.loads(text) for text in found.rows], found.total


def rows(query: Json, source: RecordSource | None = None) -> list[Any]:
    """Return the rows for a query."""
    return ask({"query": query}, source=source)[0]


def names(found: list[Any]) -> list[str]:
    return [row["certname"].partition(".")[0] for row in found]


def test_nodes_have_their_reports_and_those_without_an_entry_are_listed() -> None:
    found = rows("nodes { }", records())
    assert names(found) == ["aa01", "db01", "lb01", "web01", "web02", "zz01"]
    assert [row["latest_report_status"] for row in found] == [
        "failed", "failed", None, "changed", None, "failed",
    ]  # fmt: skip
    assert [row["facts_timestamp"] is None for row in found] == [True, *[False] * 4, True]
    assert len({tuple(row) for row in found}) == 1
    assert names(rows("nodes { latest_report_status = 'failed' }", records())) == [
        "aa01", "db01", "zz01",
    ]  # fmt: skip


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize(
    ("query", "hashes"),
    [
        ("reports { status = 'changed' }", ["db01-8", "web01-9"]),
        ("reports { latest_report? = true }", ["db01-9", "web01-9"]),
        ("reports { status in ['failed', 'unchanged'] }", ["db01-9", "web01-7"]),
        ("reports { status = 'failed' or status = 'unchanged' }", ["db01-9", "web01-7"]),
        ("reports { end_time >= '2026-11-23T09:30:00+01:00' }", ["db01-9", "web01-9"]),
        ("reports { end_time < '2026-11-23 08:00:00' }", ["web01-7"]),
        ("reports { end_time = '2026-11-23T08:00Z' }", ["db01-8"]),
        ("reports { order by end_time desc, hash limit 2 offset 1 }", ["web01-9", "db01-8"]),
        ("reports { limit 2 offset 1 }", ["db01-9", "web01-7"]),
        ("reports { nodes { facts_environment = 'testing' } }", ["db01-8", "db01-9"]),
        ("reports { inventory { facts.cluster = 'blue' } }", ["web01-7", "web01-9"]),
        ("reports { environments { name = 'testing' } }", ["web01-7"]),
        (
            [
                "from",
                "reports",
                ["in", "hash", ["from", "nodes", ["extract", "latest_report_hash"]]],
            ],
            ["db01-9", "web01-9"],
        ),
    ],
)
def test_rows_of_a_source(query: Json, hashes: list[str], cuts: bool) -> None:
    assert [row["hash"] for row in rows(query, records(cuts=cuts))] == hashes


def test_entries_are_found_by_rows_of_a_source() -> None:
    found = rows("inventory[certname] { reports { status = 'unchanged' } }", records())
    assert names(found) == ["web01"]
    found = rows("inventory[certname] { nodes { latest_report_status = 'failed' } }", records())
    assert names(found) == ["db01"]
