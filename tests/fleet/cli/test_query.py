"""`localpuppet query`, and a catalog that asks: a real Puppet, a bus of SQLite, no agent."""

import json

import pytest
import yaml

from tests.rigs.node import Node

CODE = """
  $web = servers_with_role('web').map |$server| { $server['fqdn'] }
  notify { "web: ${web}": }
"""


@pytest.fixture
def asking(node: Node) -> Node:
    """Return a web server on its own bus; its catalog queries the web servers."""
    node.settings(bus="sqlite", node="web01.example.com")
    node.app(CODE)
    document = json.loads((node.root / "input.yaml").read_text())
    node.write("input.yaml", json.dumps({**document, "parameters": {"role": "web"}}))
    return node


def test_a_run_records_its_queries_and_their_answers(asking: Node) -> None:
    assert asking.run("query", "", code=0).out == "no node of the inventory matches\n"
    first = asking.run("apply", code=0)
    assert "web: []" in first.out, "no node has published yet: the answer is empty"
    asking.run("inventory", "publish", code=0)

    second = asking.run("apply")
    assert "web: [web01.example.com]" in second.out, second.out
    (query,) = asking.run("why", "--json").json["queries"]
    assert query["text"] == 'servers_with_role("web")'
    assert query["names"] == ["web01.example.com"]
    assert asking.run("report", "--json").json["queries"] == [query]
    told = 'servers_with_role("web")\n    1 node: web01.example.com (revision'
    assert told in asking.run("why").out
    assert told in asking.run("report").out
    assert "no node (revision" in asking.run("why", "-1").out

    asking.run("inventory", "publish", code=0)
    entry = asking.run("inventory", "facts", "web01", "--json").json["entry"]
    assert [one["text"] for one in entry["queries"]] == [query["text"]]
    assert "app" in entry["classes"]
    assert asking.run("query", "Class[App]", "--count").out == "1\n"

    shown = asking.run("query", "role=web and kernel=Linux", "--show", "kernel,nosuch")
    assert shown.out.split("\n")[0].split() == ["NODE", "kernel", "nosuch"]
    assert shown.out.split("\n")[1].split() == ["web01.example.com", "Linux", "-"]
    assert asking.run("query", "not role=web", "--count").out == "0\n"
    found = asking.run("query", "role=web", "--show", "kernel", "--json").json
    assert found["nodes"] == [{"node": "web01.example.com", "facts": {"kernel": "Linux"}}]
    assert found["digest"]
    bolt = yaml.safe_load(asking.run("query", "web", "--format", "bolt", "--show", "kernel").out)
    assert bolt["version"] == 2
    assert bolt["targets"][0]["name"] == "web01.example.com"
    assert bolt["targets"][0]["facts"] == {"kernel": "Linux"}


def test_a_query_names_what_no_node_has(asking: Node) -> None:
    asking.run("apply", code=0)
    asking.run("inventory", "publish", code=0)
    for query, unknown in (
        ("os.famili=Debian and kernel=Linux", "fact os.famili (did you mean 'os.family'?)"),
        ("not os.famili=Debian", "fact os.famili (did you mean 'os.family'?)"),
        ("osfamili=Debian", "fact osfamili (did you mean 'osfamily'?)"),
        ("os.release.majr=12", "fact os.release.majr (did you mean 'os.release.major'?)"),
        ("role=wbe", "role wbe (did you mean 'web'?)"),
        ("Class[Ap]", "class Ap (did you mean 'App'?)"),
    ):
        for command in (("query",), ("nodes", "--query"), ("plan", "--query")):
            assert f"# warning: no node has the {unknown}\n" in asking.run(*command, query).err
    for word, meant in (("role", "role=VALUE"), ("os", "os=VALUE"), ("app", "Class[App]")):
        warning = f"# warning: no node has {word!r} in its name (did you mean {meant!r}?)\n"
        assert asking.run("query", word).err == warning
    assert asking.run("query", "web").err == asking.run("query", "nosuch").err == ""
    assert "no node has the role wbe (did you mean 'web'?)" in asking.run("plan", "--role=wbe").err
    assert "no node has the role wbe (did you mean 'web'?)" in asking.run("nodes", "--role=wbe").err
    assert asking.run("query", "os.family=Plan9 and role=web and not Class[App]").err == ""


def test_a_query_without_a_bus_fails_the_catalog(asking: Node) -> None:
    asking.run("apply", code=0)
    buses = {"nats": {"servers": ["nats://127.0.0.1:1"]}, "timeout": 1}
    asking.settings(bus="nats", node="web01.example.com", buses=buses)
    away = asking.run("query", "role=web", code=69)
    assert away.out == ""
    assert "inventory: cannot answer the query" in away.err
    failed = asking.run("apply", code=1)
    assert "servers_with_role(): could not ask: " in failed.out + failed.err
    assert "the last answer, " in failed.out + failed.err
    (query,) = asking.run("why", "--json").json["queries"]
    assert query["digest"] is None
    assert "could not ask" in asking.run("why").out


def test_usage(node: Node) -> None:
    node.settings(bus="sqlite", node="web01.example.com")
    for arguments, error in (
        (("a =",), "could not parse the query at its end"),
        (("Package[x]",), "resources of type Package are not supported"),
        (("a=1", "--json", "--count"), "exclude each other"),
    ):
        assert error in node.run("query", *arguments, code=2).err
