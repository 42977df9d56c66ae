"""The limits of one query, counted and not timed, and queries that are meant to hurt."""

import json
import tracemalloc
from functools import cache

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.evaluating import (
    CHECKED_EVERY,
    AnswerRoom,
    Evaluation,
    QueryDeadlineError,
    QueryLimits,
)
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.query.pql import parse_client_query
from localpuppet.fleet.inventory.query.tree import Entity
from tests.doubles.inventory import MemoryInventory
from tests.doubles.records import MemoryRecords
from tests.fleet.inventory.query.fleet import entry
from tests.rigs.limited import limited

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
def test_held_rows_are_refused_beyond_the_limit(query: str, kept: int, rows: int | None) -> None:
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
    expected = [{"count": 50}]
    assert ask(f"facts[count()] {{ fact_contents {{ {inner} }} }}", QueryLimits()) == expected


@pytest.mark.slow
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


HEAD = """
import os
from localpuppet.base.errors import InvalidInputError
from tests.fleet.inventory.query.fleet import ask

def refused(function, *arguments):
    try:
        return f"answered: {ask(function, *arguments)}"[:80]
    except InvalidInputError as error:
        return str(error)
"""

HOSTILE = {
    "nested brackets": "refused('query_nodes', '(' * 30000 + 'a=1' + ')' * 30000)",
    "many nots": "refused('query_nodes', 'not ' * 15000 + 'a=1')",
    "nested PQL": "refused('puppetdb_query', 'nodes { ' + '(' * 20000 + ')' * 20000 + '}')",
    "nested array": "refused('puppetdb_query', ['from', 'nodes', deep])",
    "many conditions": "refused('query_nodes', ' or '.join(f'a{n}=1' for n in range(6000)))",
    "subqueries": "refused('puppetdb_query', 'nodes { facts { ' * 2000 + '} ' * 4000)",
    "long list": "refused('puppetdb_query', ['from', 'nodes', ['in', 'certname', ['array', "
    "['n'] * 12000]]])",
    "large expression": "refused('query_nodes', 'a~\"' + '(x{100}){100}' * 30 + '\"')",
    "nested quantifiers": "refused('servers_with_facts', 'hostname=/^(([a-z])+.)+[A-Z]([a-z])+$/')",
    "long string": "refused('puppetdb_query', 'nodes { certname = \"' + 'x' * 60000 + '\" }')",
    "unclosed string": "refused('query_nodes', 'a=\"' + '\\\\\\\\' * 30000)",
    "escapes": "refused('query_nodes', 'a=\"' + '\\\\\\\\\"' * 20000 + '\"')",
    "dots": "refused('query_nodes', '.'.join(['a'] * 30000) + '=1')",
    "field with many parts": "refused('puppetdb_query', 'inventory {facts' + '.a' * 30000 + '=1}')",
    "numbers": "refused('query_nodes', 'a=' + '9' * 60000)",
    "index of 5,000 digits": "refused('query_facts', '', ['os.' + '9' * 5000])",
    "step of 5,000 digits": "refused('query_nodes', 'os.' + '9' * 5000 + '=1')",
    "fact of 5,000 digits": "refused('servers_with_facts', 'os.' + '9' * 5000 + '=1')",
    "superscript": "refused('query', '', 'os.\u00b2')",
    "superscript of a filter": "refused('servers_with_facts', 'os.\u00b2=1')",
    "limit and offset": "refused('puppetdb_query', ['from', 'nodes', ['limit', 2 ** 63 - 1], "
    "['offset', 2 ** 63 - 1]])",
    "lone surrogate": "refused('query_nodes', 'a~\"\\ud800\"')",
    "lone surrogate of PQL": "refused('puppetdb_query', 'nodes { certname ~ \"\\\\ud800\" }')",
    "lists among types": "refused('query_resources', '', ['in', 'type', ['array', [[], 'Class']]])",
    "spaces before the end": "refused('servers_with_facts', 'a=x' + ' ' * 65000 + 'x')",
    "indexes": "refused('puppetdb_query', 'inventory { facts.a' + '[1]' * 20000 + ' = 1 }')",
}


def test_a_hostile_query_is_an_error_in_a_single_line() -> None:
    """A fork asks each, with the limits of the process that has imported all."""
    deep = "deep = ['=', 'certname', 'a']\nfor _ in range(5000): deep = ['not', deep]\n"
    ask = "if not os.fork(): print({!r}, {}, sep=': ', flush=True); os._exit(0)\n"
    wait = "assert os.wait()[1] == 0\n"
    asked = "".join(ask.format(name, query) + wait for name, query in HOSTILE.items())
    done = limited(f"{HEAD}{deep}{asked}")
    assert done.code == 0, done.err[-500:]
    lines = done.out.removesuffix("\n").split("\n")
    assert [line.partition(": ")[0] for line in lines] == [*HOSTILE]
    assert [line for line in lines if not line.isprintable() or len(line) > 400] == []


@cache
def long() -> MemoryInventory:
    facts: list[dict[str, Json]] = [{"text": f"{n:01048576}"} for n in range(100)]
    web = (entry(f"web{n:02}.example.com", one, roles=["web"]) for n, one in enumerate(facts))
    return MemoryInventory([*web])


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("servers_with_role", ["web"]),
        ("query_nodes", ["", "text"]),
        ("query_facts", ["", ["/text/"]]),
        ("query", ["", "text"]),
        ("puppetdb_query", ["inventory { }"]),
        ("puppetdb_query", ["inventory { order by certname }"]),
        ("puppetdb_query", ["inventory[facts, count()] { group by facts }"]),
    ],
    ids=str,
)
def test_too_large_an_answer_is_not_read_to_its_end(function: str, arguments: list[Json]) -> None:
    with pytest.raises(InvalidInputError, match=r"^\w+\(\): the answer has more than"):
        FunctionCall.of(function, arguments).answer(long())


def test_sorting_behind_a_limit_takes_little_memory() -> None:
    text = "inventory[certname, facts.text] { order by certname desc limit 2 offset 1 }"
    reply = FunctionCall.of("puppetdb_query", [text]).answer(long())
    assert reply.names == ("web97.example.com", "web98.example.com")


def test_resources_are_grouped_in_a_single_pass() -> None:
    done = limited(
        """
from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import entry

classes = [f"c{n}" for n in range(20)]
fleet = MemoryInventory([entry(f"n{n:04}.example.com", classes=classes) for n in range(2000)])
reply = FunctionCall.of("query_resources", ["", ["=", "type", "Class"], True]).answer(fleet)
print(len(reply.result), {len(rows) for rows in reply.result.values()})
"""
    )
    assert done.out.split() == ["2000", "{20}"], done.err[-500:]


def test_the_corpus_stays_within_the_limits() -> None:
    done = limited(
        """
from localpuppet.base.errors import InvalidInputError
from localpuppet.node.puppet.report import parse_facts
from tests.fleet.inventory.query.test_functions import MINE as QUERIES, answer
from tests.node.puppet.test_report import MINE as FACTS, content

refused = 0
for ask, cases in (
    (lambda case: answer(str(case["input"]), "a" * 60 + "!"), QUERIES),
    (lambda case: parse_facts(content(case), where="facts"), FACTS),
):
    for case in cases:
        try:
            ask(case)
        except InvalidInputError:
            refused += 1
print(len(QUERIES), len(FACTS), refused)
"""
    )
    assert done.code == 0, done.err[-500:]
    assert done.out.split() == ["14", "4", "7"]


def test_a_grammar_is_loaded_when_something_is_parsed() -> None:
    done = limited(
        """
import sys
import localpuppet.fleet.agent.code_calls, localpuppet.fleet.cli.inventory
from tests.fleet.inventory.query.fleet import ask
ask("servers_with_role", "web")
print([name for name in ("lark", "re2") if name in sys.modules])
ask("query_nodes", "a~b")
print([name for name in ("lark", "re2") if name in sys.modules])
"""
    )
    assert done.out.splitlines() == ["[]", "['lark', 're2']"]
