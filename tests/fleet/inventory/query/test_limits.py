"""The limits of one query: rows, memory, nesting and the deadline; counted, not timed."""

import json
import tracemalloc

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.client_query import parse_client_query
from localpuppet.fleet.inventory.query.evaluating import (
    CHECKED_EVERY,
    AnswerRoom,
    Evaluation,
    QueryDeadlineError,
    QueryLimits,
)
from localpuppet.fleet.inventory.query.tree import Entity
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


FEW_STEPS = QueryLimits(steps=30_000)
FEW_KEPT = QueryLimits(kept=40)
SMALL = QueryLimits(size=10_000)
# A query beyond its limit, and the same kind of query within.
BEYOND = {
    "rows": ("facts { }", "facts { name = 'fact01' }", FEW_STEPS),
    "rows of a source": ("reports { }", "nodes { }", FEW_STEPS),
    "rows of a subquery": (
        "nodes { certname in facts[certname] { value ~ 'absent' } or facts { value ~ 'x{9}y' } }",
        "nodes { certname in nodes[certname] { } }",
        FEW_STEPS,
    ),
    "values that functions read": (
        "facts { name = 'fact01' and fact_contents { value = 'absent' } }",
        "facts { name = 'fact01' and fact_contents { name = 'fact01' and value = 1 } }",
        FEW_STEPS,
    ),
    "values of an entity": ("fact_paths { }", "fact_names { }", FEW_STEPS),
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
}


@pytest.mark.parametrize("kind", BEYOND)
def test_a_query_ends_at_its_limit(kind: str) -> None:
    beyond, within, limits = BEYOND[kind]
    assert ask(within, limits)
    with pytest.raises(InvalidInputError, match="more than"):
        ask(beyond, limits)


@pytest.mark.parametrize(
    ("query", "kept", "rows"),
    [
        ("nodes { order by certname }", 50, 50),
        ("nodes { order by certname }", 49, None),
        ("nodes { order by certname limit 49 }", 49, 49),
        ("nodes { order by certname limit 50 }", 49, None),
        ("nodes { order by certname limit 60 }", 50, 50),
        ("nodes[certname] { group by certname }", 50, 50),
        ("nodes[certname] { group by certname }", 49, None),
        ("nodes { }", 10, 50),  # neither sorted nor grouped: no row is held
    ],
)
def test_held_rows_are_refused_only_beyond_the_limit(
    query: str, kept: int, rows: int | None
) -> None:
    limits = QueryLimits(kept=kept)
    if rows is None:
        with pytest.raises(InvalidInputError, match=f"more than {kept} rows"):
            ask(query, limits)
    else:
        assert len(ask(query, limits)) == rows


def test_the_room_of_an_answer_ends_with_its_rows_and_its_characters() -> None:
    room = AnswerRoom(QueryLimits(kept=2, size=2 * 1048576))
    assert [room.take("a"), room.take("b")] == ["a", "b"]
    with pytest.raises(InvalidInputError, match="more than 2 rows"):
        room.take("c")
    room = AnswerRoom(QueryLimits(size=2 * 1048576))
    assert room.take("x" * (2 * 1048576 - 1))
    with pytest.raises(InvalidInputError, match="more than 2 MiB"):
        room.take("")


@pytest.mark.parametrize("function", ["count", "sum", "avg", "min", "max"])
def test_a_function_has_one_argument_and_only_count_may_have_none(function: str) -> None:
    def called(*arguments: Json) -> list[Json]:
        extract: list[Json] = ["extract", [["function", function, *arguments]]]
        return ask(["from", "facts", ["=", "name", "fact01"], extract], QueryLimits())

    assert [*called("value")[0]] == [function]  # type: ignore[misc]
    with pytest.raises(InvalidInputError, match=rf"{function}\(\) has 2 arguments"):
        called("value", "name")
    if function == "count":
        assert called() == [{"count": 50}]
    else:
        with pytest.raises(InvalidInputError, match=rf"{function}\(\) has 0 arguments"):
            called()


def test_many_patterns_remember_no_more_values_than_one() -> None:
    """What each of them had searched filled 177 MiB."""
    texts = [entry(f"n{number:03}", {"text": f"{number:03}" * 60}) for number in range(300)]
    peaks = []
    for count in (1, 40):
        patterns: list[Json] = [["~", "value", f"x{number}$"] for number in range(count)]
        select = parse_client_query({"query": ["from", "facts", ["or", *patterns]]}).select
        evaluation = Evaluation(MemoryInventory(texts), limits=QueryLimits(remembered=300))
        tracemalloc.start()
        assert [*evaluation.stream(select).rows] == []
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 4 * peaks[0]


def test_nested_subqueries_are_answered_one_after_the_other() -> None:
    """As one SQL text, they would be too deep for SQLite's parser."""
    inner = "facts { fact_contents { " * 10 + "name = 'fact01'" + " } }" * 10
    assert ask(f"facts[count()] {{ fact_contents {{ {inner} }} }}", QueryLimits()) == [
        {"count": 50}
    ]


def test_a_large_sort_is_an_error_and_leaves_other_queries_alone() -> None:
    """SQLite's memory has a limit for the whole process; without room it raises MemoryError."""
    facts: dict[str, Json] = {"text": "x" * 1_000_000}
    large = MemoryInventory([entry(f"n{n}.example.com", {**facts, "n": n}) for n in range(300)])
    query = "facts { name = 'text' order by value, certname }"
    select = parse_client_query({"query": query}).select
    with pytest.raises(UnavailableError, match="all queries together need more than 256 MiB"):
        [*Evaluation(large).stream(select).rows]
    assert ask("nodes[count()] { }", QueryLimits()) == [{"count": 50}]


@pytest.mark.parametrize(
    "query",
    [
        "facts { value = 'absent' }",
        "reports { hash ~ 'absent' }",
        "facts[count(value)] { }",
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

    with pytest.raises(QueryDeadlineError):
        ask(query, QueryLimits(check=check))
    assert calls == 2


def test_a_function_that_reads_much_ends_at_the_deadline() -> None:
    """SQLite does not interrupt a function of this process."""
    tree: dict[str, Json] = {f"key{number}": number for number in range(CHECKED_EVERY)}
    reader = MemoryInventory([entry("n.example.com", {"a": {"b": tree}})])
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1

    text = 'facts.match(".*").b.match("x")'
    select = parse_client_query({"query": ["from", "inventory", ["=", text, 1]]}).select
    assert [*Evaluation(reader, limits=QueryLimits(check=check)).stream(select).rows] == []
    assert calls


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_the_first_rows_of_many_are_the_first_of_all(direction: str) -> None:
    """More rows than are sorted at once, with equal keys."""
    numbers = [number * 7919 % 400 for number in range(3000)]
    rows: list[dict[str, Json]] = [{"certname": "a", "report_format": n} for n in numbers]
    source = MemoryRecords({Entity.REPORTS: rows})
    query = (
        f"reports[report_format, hash] {{ order by report_format {direction} limit 9 offset 3 }}"
    )
    select = parse_client_query({"query": query}).select
    found = [json.loads(text) for text in Evaluation(WIDE, records=source).stream(select).rows]
    expected = sorted(numbers, reverse=direction == "desc")[3:12]
    assert [row["report_format"] for row in found] == expected
