"""Queries that are meant to hurt, and the corpus: within 200 MB of memory and 5 s of CPU time."""

from functools import cache

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import entry
from tests.rigs.limited import limited

HEAD = """
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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_query_is_an_error_in_a_single_line(name: str) -> None:
    deep = "deep = ['=', 'certname', 'a']\nfor _ in range(5000): deep = ['not', deep]\n"
    done = limited(f"{HEAD}{deep}print({HOSTILE[name]})\n")
    assert done.code == 0, done.err[-500:]
    assert len(done.out.splitlines()) == 1
    assert done.out.strip().isprintable()
    assert len(done.out) < 400


@cache
def long() -> MemoryInventory:
    """Return a hundred web servers, each with 1 MiB of facts."""
    return MemoryInventory(
        [
            entry(f"web{n:02}.example.com", {"text": f"{n:01048576}"}, roles=["web"])
            for n in range(100)
        ]
    )


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
def test_an_answer_that_is_too_large_is_not_read_to_its_end(
    function: str, arguments: list[Json]
) -> None:
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


def test_facts_that_are_not_numbers_are_named() -> None:
    fleet = MemoryInventory([entry("a.example.com", {"a": "x", "b": "y"})])
    reply = FunctionCall.of("servers_with_facts", ["a>1", "b>1", "a>2"]).answer(fleet)
    assert [warning.split()[2] for warning in reply.warnings] == ["a", "b"]


def test_the_corpus_stays_within_the_limits() -> None:
    done = limited(
        """
from localpuppet.base.errors import InvalidInputError
from localpuppet.node.puppet.report import parse_facts
from tests.fleet.inventory.query.test_fact_filter import MINE as QUERIES, answer
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
