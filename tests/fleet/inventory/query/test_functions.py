"""The functions' arguments, results and errors, as the predecessors have them."""

from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall, FunctionReply
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import (
    DB,
    FLEET,
    LB,
    WEB1,
    WEB2,
    ask,
    entry,
    inventory,
    short,
)


def hosts(result: Json) -> list[Json]:
    assert isinstance(result, list)
    return [server["hostname"] if isinstance(server, dict) else None for server in result]


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        ("servers_with_role", 0, "(0; must be >= 1)"),
        ("servers_with_facts", 0, "(0; must be >= 1)"),
        ("server_with_role", 0, "(0; must be >= 1)"),
        ("query_nodes", 0, "(0; must be 1 to 2)"),
        ("query_nodes", 3, "(3; must be 1 to 2)"),
        ("query_facts", 1, "(1; must be 2)"),
        ("query_resources", 1, "(1; must be 2 to 3)"),
        ("puppetdb_query", 2, "(2; must be 1)"),
    ],
)
def test_a_wrong_number_of_arguments(function: str, arguments: int, error: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        FunctionCall.of(function, ["x"] * arguments)
    assert str(caught.value) == f"{function}(): wrong number of arguments {error}"


def test_servers_with_role_are_whole_fact_hashes_by_fqdn() -> None:
    servers: Any = ask("servers_with_role", "web")
    assert [server["fqdn"] for server in servers] == ["web01.example.com", "web02.example.com"]
    assert servers[0]["hostname"] == "web01"
    assert servers[0]["ipaddress"] == "10.0.0.1"
    assert servers[0]["ipaddress_eth0"] == "10.0.0.1"
    assert servers[0]["operatingsystemrelease"] == "12.11"
    assert servers[0]["interfaces"] == "eth0,eth0_5"
    assert servers[0]["role"] == "web"
    assert servers[0]["networking"]["ip"] == "10.0.0.1"
    assert servers[1]["osfamily"] == "its own word", "a published fact keeps its value"


def test_roles_are_literal_and_any_of_them_counts() -> None:
    assert hosts(ask("servers_with_role", "db", "web")) == ["db01", "web01", "web02"]
    assert hosts(ask("servers_with_role", ["db", "web"])) == ["db01", "web01", "web02"]
    assert ask("servers_with_role", "w.b") == []
    assert hosts(ask("servers_with_role", "backup")) == ["db01"]
    with pytest.raises(InvalidInputError, match="a role is empty"):
        ask("servers_with_role", "")
    with pytest.raises(InvalidInputError, match="must be a string, not a number"):
        ask("servers_with_role", 5)


def test_a_fallback_replaces_an_empty_answer_and_no_error() -> None:
    fallback: Json = {"hostname": "localhost"}
    found: Any = ask("server_with_role", "web", fallback)
    assert found["fqdn"] == "web01.example.com"
    assert ask("server_with_role", "nosuch", fallback) == fallback
    assert ask("server_with_role", "nosuch") is None

    class Broken(MemoryInventory):
        def rows(self, *_: object, **__: object) -> Any:
            raise StateError("cannot be read")

    with pytest.raises(StateError):
        FunctionCall.of("server_with_role", ["web", fallback]).answer(Broken(FLEET))


def test_servers_with_facts_must_match_all() -> None:
    assert hosts(ask("servers_with_facts", "os.family=Debian", "processors.count>4")) == ["web02"]
    assert hosts(ask("servers_with_facts", "hostname=/^web01$|^db01$/")) == ["db01", "web01"]
    assert hosts(ask("servers_with_facts", "role=web", "os.release.major!=10")) == ["web01"]


def test_a_fact_that_is_not_a_number_is_named() -> None:
    reply = FunctionCall.of("servers_with_facts", ["uptime>10"]).answer(inventory())
    assert reply.names == ("lb01.example.com",)
    assert reply.warnings == (
        "the fact uptime is not a number on db01.example.com, web01.example.com: it does not match",
    )


def test_query_nodes_returns_names_or_values() -> None:
    assert ask("query_nodes", "role=web") == ["web01.example.com", "web02.example.com"]
    assert ask("query_nodes", "Class[Apache]", "fqdn") == ["web01.example.com", "web02.example.com"]
    assert ask("query_nodes", "", "cluster") == ["blue"], "nodes without the fact are left out"
    # As in puppetdbquery: the node has the fact `networking`, and nothing at that place in it.
    addresses = ask("query_nodes", "", "networking.interfaces.eth0.ip")
    assert addresses == [None, "10.0.0.1", None]


def test_query_facts_returns_a_hash_of_hashes() -> None:
    found = ask("query_facts", "role=web", ["ipaddress", "os.release.major", "cluster"])
    assert found == {
        "web01.example.com": {
            "ipaddress": "10.0.0.1",
            "os_release_major": "12",
            "cluster": "blue",
        },
        "web02.example.com": {"ipaddress": "10.0.0.2", "os_release_major": "10"},
    }
    assert ask("query_facts", "", ["/^clus/"]) == {"web01.example.com": {"cluster": "blue"}}
    with pytest.raises(InvalidInputError, match="must be 1 to 100"):
        ask("query_facts", "", [])


def test_query_resources_returns_classes() -> None:
    """Clients read all columns of a resource; those that entries do not have are null."""
    row = {
        **dict.fromkeys(("tags", "file", "line", "parameters")),
        "certname": "web01.example.com",
        "type": "Class",
        "title": "Profile::Web",
        "exported": False,
        "environment": "production",
    }
    assert ask("query_resources", False, "Class['profile::web']") == [row]
    assert ask("query_resources", "role=web", "Class[~'::']", True) == {"web01.example.com": [row]}
    assert ask("query_resources", "role=lb", "Class[~'::']") == []


def test_query_returns_names_or_the_requested_facts() -> None:
    assert short(ask("query", "role=web")) == ["web01", "web02"]
    assert ask("query", "role=db", ["networking.ip", "nosuch.fact"]) == {
        "db01.example.com": {"networking.ip": "10.0.0.9", "nosuch.fact": None}
    }


def reply(
    *entries: InventoryEntry, function: str = "servers_with_role", query: str = "web"
) -> FunctionReply:
    return FunctionCall.of(function, [query]).answer(MemoryInventory(entries))


def test_the_digest_changes_with_the_requested_values() -> None:
    before = reply(WEB1)
    assert reply(WEB1).digest == before.digest
    assert reply(WEB1, WEB2).digest != before.digest
    other = entry("web01.example.com", {**WEB1.facts, "uptime": "9 days"}, roles=["web"])
    assert reply(other).digest == before.digest, (
        "an address matters in a fact hash, uptime does not"
    )
    moved = entry("web01.example.com", {**WEB1.facts, "ipaddress": "10.0.0.77"}, roles=["web"])
    assert reply(moved).digest != before.digest
    pql = "facts[value] { name = 'uptime' }"
    first = reply(WEB1, function="puppetdb_query", query=pql)
    assert reply(other, function="puppetdb_query", query=pql).digest != first.digest
    nodes = reply(WEB1, function="puppetdb_query", query="nodes { }")
    later = InventoryEntry.from_dict({**WEB1.to_dict(), "at": 1.0})
    assert reply(later, function="puppetdb_query", query="nodes { }").digest == nodes.digest


def test_the_text_of_a_question_is_the_call() -> None:
    question = FunctionCall.of("query_facts", ["a='b'", ["c"]])
    assert question.text == 'query_facts("a=\'b\'", ["c"])'


def test_the_small_fleet_is_sorted() -> None:
    assert [str(one.node) for one in FLEET] == sorted(str(one.node) for one in (WEB2, LB, DB, WEB1))


def test_large_facts_of_a_hostile_node_do_not_disturb_queries_of_others() -> None:
    odd: Json = {"a": [0] * 300_000}
    wide: Json = {f"eth{number}": {"ip": "10.0.0.1"} for number in range(20_000)}
    hostile = entry("a.example.com", {"x": odd, "networking": {"interfaces": wide}}, roles=["web"])
    reader = MemoryInventory([hostile, WEB1])

    def found(function: str, *arguments: Json) -> Json:
        return FunctionCall.of(function, arguments).answer(reader).result

    assert found("query_nodes", "networking.*.*.mac=aa:01") == ["web01.example.com"]
    counted = found("puppetdb_query", "fact_contents[certname, count()] { group by certname }")
    assert isinstance(counted, list)
    assert len(counted) == 2
    servers: Any = found("servers_with_role", "web")
    assert [server["fqdn"] for server in servers] == ["a.example.com", "web01.example.com"]
    assert "ipaddress_eth19999" not in servers[0]


def test_a_question_is_no_larger_than_it_must_be() -> None:
    with pytest.raises(InvalidInputError, match="more than 128 KiB"):
        FunctionCall.of("query_facts", ["", ["x" * 1000] * 200])
    assert len(FunctionCall.of("query_nodes", ["a" * 5000]).text) < 1100
