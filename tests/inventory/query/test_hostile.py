"""Queries that are meant to hurt, and the corpus: within 200 MB of memory and 5 s of CPU time."""

import pytest

from tests.rigs.limited import limited

HEAD = """
from localpuppet.errors import InvalidInputError
from tests.inventory.query.fleet import ask

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
    "indexes": "refused('puppetdb_query', 'inventory { facts.a' + '[1]' * 20000 + ' = 1 }')",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_query_ends_in_one_line(name: str) -> None:
    deep = "deep = ['=', 'certname', 'a']\nfor _ in range(5000): deep = ['not', deep]\n"
    done = limited(f"{HEAD}{deep}print({HOSTILE[name]})\n")
    assert done.code == 0, done.err[-500:]
    assert len(done.out.splitlines()) == 1
    assert done.out.strip().isprintable()
    assert len(done.out) < 400


def test_the_corpus_stays_within_the_limits() -> None:
    done = limited(
        """
from localpuppet.errors import InvalidInputError
from localpuppet.puppet.facts import parse_facts
from tests.inventory.query.test_fact_filter import MINE as QUERIES, answer
from tests.puppet.test_facts import MINE as FACTS, content

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
import localpuppet.agent.inventory_calls, localpuppet.cli.inventory.query
from tests.inventory.query.fleet import ask
ask("servers_with_role", "web")
print([name for name in ("lark", "re2") if name in sys.modules])
ask("query_nodes", "a~b")
print([name for name in ("lark", "re2") if name in sys.modules])
"""
    )
    assert done.out.splitlines() == ["[]", "['lark', 're2']"]
