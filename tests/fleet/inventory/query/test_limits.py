"""The limits of one query: rows, memory, nesting and the deadline; counted, not timed."""

import json
from collections.abc import Iterator

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.budget import (
    CHECKED_EVERY,
    QueryDeadlineError,
    QueryLimits,
)
from localpuppet.fleet.inventory.query.client_query import parse_client_query
from localpuppet.fleet.inventory.query.evaluating import SPARE, Evaluation
from localpuppet.fleet.inventory.query.tree import Entity
from localpuppet.fleet.inventory.reading import Equal
from tests.doubles.inventory import MemoryInventory
from tests.doubles.records import MemoryRecords
from tests.fleet.inventory.query.fleet import entry

FACTS: dict[str, Json] = {f"fact{number:02}": {"x": number, "y": [1, 2]} for number in range(20)}
WIDE = MemoryInventory(
    [entry(f"n{number:03}.example.com", {**FACTS, "text": "x" * 100}) for number in range(50)]
)
REPORTS = MemoryRecords(
    {Entity.REPORTS: [{"certname": "n001.example.com", "hash": f"{n}"} for n in range(500)]}
)


def ask(query: Json, limits: QueryLimits, **parameters: Json) -> list[Json]:
    asked = parse_client_query({"query": query, **parameters})
    found = Evaluation(WIDE, records=REPORTS, limits=limits).stream(asked.select, total=asked.total)
    return [json.loads(text) for text in found.rows]


FEW_SEEN = QueryLimits(seen=300)
FEW_KEPT = QueryLimits(kept=40)
SMALL = QueryLimits(size=10_000)
# A query with more rows than its limit, and the same kind of query with fewer.
BEYOND = {
    "rows": ("facts { }", "facts { limit 300 }", FEW_SEEN),
    "rows of a source": ("reports { }", "reports { limit 300 }", FEW_SEEN),
    "rows of a subquery": (
        "nodes { certname in facts[certname] { } }",
        "nodes { certname in nodes[certname] { } }",
        FEW_SEEN,
    ),
    "rows of an implicit subquery": (
        "nodes { facts { value = 'absent' } }",
        "nodes { facts { name = 'fact01' } }",
        FEW_SEEN,
    ),
    "one fact beside all others": (
        "facts { name = 'fact01' and fact_contents { value = 'absent' } }",
        "facts { name = 'fact01' and fact_contents { value = 1 } }",
        QueryLimits(seen=170),
    ),
    "values of an entity": ("fact_paths { }", "fact_names { }", FEW_SEEN),
    "sorted rows": (
        "nodes { order by facts_timestamp, certname desc }",
        "nodes { order by facts_timestamp, certname desc limit 20 }",
        FEW_KEPT,
    ),
    "groups": (
        "nodes[certname] { group by certname }",
        "facts[name] { name ~ '^fact' group by name }",
        FEW_KEPT,
    ),
    "values of a subquery": (
        "nodes { certname in nodes[certname] { } }",
        "nodes { certname in nodes[certname] { limit 40 } }",
        FEW_KEPT,
    ),
    "values of two subqueries": (
        "nodes { certname in nodes[certname] { limit 30 } and certname in facts[certname] { } }",
        "nodes { certname in nodes[certname] { limit 30 } }",
        FEW_KEPT,
    ),
    "values of all nodes": ("fact_paths { }", "fact_names { }", FEW_KEPT),
    "sorted texts": (
        "facts { order by value limit 900 }",
        "facts { order by value limit 30 }",
        SMALL,
    ),
}


@pytest.mark.parametrize("kind", BEYOND)
def test_a_query_ends_at_its_limit(kind: str) -> None:
    beyond, within, limits = BEYOND[kind]
    assert ask(within, limits)
    with pytest.raises(InvalidInputError, match="more than"):
        ask(beyond, limits)


def test_nested_subqueries_multiply_within_the_limit() -> None:
    inner = "facts { fact_contents { " * 10 + "value = 'absent'" + " } }" * 10
    with pytest.raises(InvalidInputError, match="looks at more than 20000 rows"):
        ask(f"facts {{ fact_contents {{ {inner} }} }}", QueryLimits(seen=20_000))


def test_a_large_page_with_a_total_is_not_held_in_memory() -> None:
    class Reading(MemoryInventory):
        seen = 0

        def entries(self, equal: Equal | None = None) -> Iterator[InventoryEntry]:
            for one in super().entries(equal):
                self.seen += 1
                yield one

    reader = Reading([entry(f"n{number:04}.example.com") for number in range(1500)])
    select = parse_client_query({"query": "nodes { limit 1400 }"}).select
    found = Evaluation(reader).stream(select, total=True)
    assert (found.total, reader.seen) == (1500, 1500)
    next(found.rows)
    assert reader.seen == 1501
    assert sum(1 for _ in found.rows) == 1399


def test_rows_arrive_while_the_inventory_is_read() -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1

    select = parse_client_query({"query": "facts { }"}).select
    found = Evaluation(WIDE, limits=QueryLimits(check=check)).stream(select)
    next(found.rows)
    assert calls == 0
    rows = 1 + sum(1 for _ in found.rows)
    assert calls == rows // CHECKED_EVERY


@pytest.mark.parametrize(
    "query",
    [
        "facts { value = 'absent' }",
        "reports { hash = 'absent' }",
        "facts[count()] { }",
        "facts { order by value }",
        "fact_paths { }",
        "nodes { certname in facts[certname] { } }",
        "nodes { facts { value = 'absent' } }",
        "nodes { ! facts { value = 'absent' } and facts { value = 'absent' } }",
    ],
)
def test_each_loop_ends_at_the_deadline(query: str) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise QueryDeadlineError("the query took longer than 20 s")

    try:
        ask(query, QueryLimits(check=check))
    except QueryDeadlineError:
        assert calls == 2
    else:
        assert query.startswith("reports"), query


TREE: dict[str, Json] = {f"key{number}": number for number in range(CHECKED_EVERY)}
TREES = MemoryInventory([entry("n.example.com", {"a": {"b": TREE, "c": [1]}, "d": {"b": TREE}})])


@pytest.mark.parametrize(
    ("field", "checks"), [('facts.match(".*").b.match("x")', 2), ('facts.a.c.match("x")', 0)]
)
def test_a_row_with_many_values_ends_at_the_deadline(field: str, checks: int) -> None:
    """Values that a pattern reads count; values beside the path before it are not read."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1

    select = parse_client_query({"query": ["from", "inventory", ["=", field, 1]]}).select
    assert [*Evaluation(TREES, limits=QueryLimits(check=check)).stream(select).rows] == []
    assert calls == checks


def test_many_comparisons_of_a_row_end_at_the_deadline() -> None:
    def check() -> None:
        raise QueryDeadlineError("the query took longer than 20 s")

    some: list[Json] = [["~", "facts.a.b.key1", f"x{n}"] for n in range(CHECKED_EVERY)]
    select = parse_client_query({"query": ["from", "inventory", ["or", *some]]}).select
    with pytest.raises(QueryDeadlineError):
        [*Evaluation(TREES, limits=QueryLimits(check=check)).stream(select).rows]


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_the_first_rows_of_many_are_the_first_of_all(direction: str) -> None:
    """More rows than are sorted at once, with equal keys."""
    numbers = [number * 7919 % 400 for number in range(3 * SPARE)]
    rows: list[dict[str, Json]] = [{"certname": "a", "report_format": n} for n in numbers]
    source = MemoryRecords({Entity.REPORTS: rows})
    query = (
        f"reports[report_format, hash] {{ order by report_format {direction} limit 9 offset 3 }}"
    )
    select = parse_client_query({"query": query}).select
    found = [json.loads(text) for text in Evaluation(WIDE, records=source).stream(select).rows]
    expected = sorted(numbers, reverse=direction == "desc")[3:12]
    assert [row["report_format"] for row in found] == expected
