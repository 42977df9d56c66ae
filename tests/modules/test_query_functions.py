"""The functions that query nodes, with the real Puppet."""

import json
from pathlib import Path

import pytest

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import FLEET
from tests.rigs.agent_peer import Answer
from tests.rigs.agent_peer import Question as Asked
from tests.rigs.bench import Bench


def answering(question: Asked) -> Answer:
    """Answer as the agent does, from the inventory of the small fleet."""
    asked = FunctionCall.of(question["function"], question["arguments"])
    reply = asked.answer(MemoryInventory(FLEET))
    return {"ok": True, "answer": reply.result, "warnings": list(reply.warnings)}


def test_manifests_of_the_predecessors_get_the_same_answers(bench: Bench) -> None:
    agent = bench.listen(answering)
    done = bench.apply(
        """
        $nodes = servers_with_role('web')
        $config = inline_epp('<% $nodes.each |$node| { -%>
server <%= $node["hostname"] %> <%= $node["ipaddress"] %>:8080 check inter 2000
<% } -%>', { 'nodes' => $nodes })
        notice($config)
        $proxy = server_with_role('haproxy', { hostname => 'localhost', ipaddress => '' })
        notice("proxy ${proxy['hostname']}")
        $both = servers_with_facts('hostname=/^web01$|^db01$/').map |$s| { $s['fqdn'] }
        notice("both ${both}")
        trigger { 'refresh load balancers':
          hosts => query_nodes('Class[Haproxy]', fqdn),
        }
        """
    )
    assert done.code == 0, done.text
    assert "server web01 10.0.0.1:8080 check inter 2000" in done.text
    assert "server web02 10.0.0.2:8080 check inter 2000" in done.text
    assert "proxy localhost" in done.text
    assert "both [db01.example.com, web01.example.com]" in done.text
    assert [question["function"] for question in agent.questions] == [
        "servers_with_role",
        "server_with_role",
        "servers_with_facts",
        "query_nodes",
    ]
    assert agent.questions[3] == {
        "verb": "query",
        "function": "query_nodes",
        "arguments": ["Class[Haproxy]", "fqdn"],
        "run": None,
    }


def test_each_function_has_a_name_in_the_namespace_too(bench: Bench, puppet_alone: Path) -> None:
    """The isolated Puppet has no puppet-terminus-puppetdb, whose `puppetdb_query` would win."""
    agent = bench.listen(answering)
    code = """
        $a = localpuppet::servers_with_role('web')
        $b = localpuppet::server_with_role('nosuch')
        $c = localpuppet::servers_with_facts('uptime>10')
        $d = localpuppet::query_nodes('')
        $e = localpuppet::query_facts('', ['cluster'])
        $f = localpuppet::query_resources(false, 'Class[apache]', true)
        $g = localpuppet::puppetdb_query('nodes[certname] { limit 1 }')
        $h = localpuppet::query('role=web', ['networking.ip', 'nosuch'])
        $i = puppetdb_query(['from', 'nodes', ['extract', [['function', 'count']]]])
        $all = [$a.size, $b =~ Undef, $c.size, $d.size, $e, $f.keys, $g, $h, $i]
        notice(stdlib_free_json($all))
    """.replace("stdlib_free_json($all)", "String($all, '%p')")
    done = bench.apply(code, LOCALPUPPET_RUN="run-1", RUBYLIB=str(puppet_alone))
    assert done.code == 0, done.text
    assert (
        "[2, true, 1, 4, {'web01.example.com' => {'cluster' => 'blue'}},"
        " ['web01.example.com', 'web02.example.com'], [{'certname' => 'db01.example.com'}],"
        " {'web01.example.com' => {'networking.ip' => '10.0.0.1', 'nosuch' => undef},"
        " 'web02.example.com' => {'networking.ip' => '10.0.0.2', 'nosuch' => undef}},"
        " [{'count' => 4}]]"
    ) in done.text
    warning = "the fact uptime is not a number on db01.example.com, web01.example.com"
    assert f"Warning: servers_with_facts(): {warning}" in done.text
    assert {question["run"] for question in agent.questions} == {"run-1"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("servers_with_role()", "servers_with_role(): wrong number of arguments (0; must be >= 1)"),
        ("query_nodes('Package[x]')", "resources of type Package are not supported"),
    ],
)
def test_there_is_no_catalog_if_the_agent_refuses(bench: Bench, code: str, error: str) -> None:
    def answer(asked: Asked) -> Answer:
        try:
            return answering(asked)
        except LocalpuppetError as problem:
            return {"ok": False, "error": str(problem)}

    bench.listen(answer)
    done = bench.apply(f"$x = {code}")
    assert done.code == 1
    assert error in done.errors[0]


def test_puppet_compiles_no_catalog_if_a_query_gets_no_answer(bench: Bench) -> None:
    code = "$x = server_with_role('web', 'localhost')"
    done = bench.apply(code, LOCALPUPPET_COMMAND="no-such")
    assert done.code == 1
    assert "no-such: cannot be run" in done.errors[0]
    answers: list[Answer] = [
        {"ok": False, "error": "server_with_role(): could not ask: the inventory is 20m old"},
        {"ok": True},
        "",
    ]
    bench.listen(lambda _: answers.pop(0))
    for error in (
        "could not ask: the inventory is 20m old",
        "holds no result",
        "without an answer",
    ):
        done = bench.apply(code)
        assert done.code == 1
        assert error in done.errors[0]


def test_puppet_sends_no_query_with_a_sensitive_value(bench: Bench) -> None:
    agent = bench.listen(answering)
    done = bench.apply("$x = query_nodes(Sensitive('role=web'))")
    assert done.code == 1
    assert "role=web" not in done.text.replace("Sensitive('role=web')", "")
    assert agent.questions == []


def test_an_answer_to_a_query_may_be_larger_than_one_to_a_trigger(bench: Bench) -> None:
    names = [f"n{number}.example.com" for number in range(100_000)]
    bench.listen(lambda _: {"ok": True, "answer": names, "warnings": []})
    done = bench.apply("notice(query_nodes('').size)")
    assert done.code == 0, done.text
    assert "100000" in done.text
    assert len(json.dumps(names)) > 1024 * 1024
