"""Functions in catalogs: arguments, results, parts of answers, mcollective's expressions."""

import re
import time
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall, FunctionReply
from localpuppet.fleet.inventory.query.parts import DETAILED, parts_of
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import FLEET, WEB1, WEB2, ask, entry, inventory, short
from tests.rigs.bad_inputs import CASES


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
    facts = {"hostname": "web01", "ipaddress": "10.0.0.1", "ipaddress_eth0": "10.0.0.1"}
    facts |= {"operatingsystemrelease": "12.11", "interfaces": "eth0,eth0_5", "role": "web"}
    assert facts.items() <= {name: servers[0][name] for name in facts}.items()
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
    fleet = MemoryInventory([entry("a.example.com", {"a": "x", "b": "y"})])
    several = FunctionCall.of("servers_with_facts", ["a>1", "b>1", "a>2"]).answer(fleet)
    assert [warning.split()[2] for warning in several.warnings] == ["a", "b"]
    assert reply.warnings == (
        "the fact uptime is not a number on db01.example.com, web01.example.com: it does not match",
    )


def test_query_nodes_and_query_return_names_or_values() -> None:
    assert ask("query_nodes", "role=web") == ["web01.example.com", "web02.example.com"]
    assert ask("query_nodes", "Class[Apache]", "fqdn") == ["web01.example.com", "web02.example.com"]
    assert ask("query_nodes", "", "cluster") == ["blue"], "nodes without the fact are left out"
    # As in puppetdbquery: the node has the fact `networking`, and nothing at that place in it.
    assert ask("query_nodes", "", "networking.interfaces.eth0.ip") == [None, "10.0.0.1", None]
    assert short(ask("query", "role=web")) == ["web01", "web02"]
    expected = {"db01.example.com": {"networking.ip": "10.0.0.9", "nosuch.fact": None}}
    assert ask("query", "role=db", ["networking.ip", "nosuch.fact"]) == expected


def test_query_facts_returns_a_hash_of_hashes() -> None:
    found = ask("query_facts", "role=web", ["ipaddress", "os.release.major", "cluster"])
    assert found == {
        "web01.example.com": {"ipaddress": "10.0.0.1", "os_release_major": "12", "cluster": "blue"},
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


def reply(
    *entries: InventoryEntry, function: str = "servers_with_role", query: str = "web"
) -> FunctionReply:
    return FunctionCall.of(function, [query]).answer(MemoryInventory(entries))


def test_the_digest_changes_with_the_requested_values() -> None:
    before = reply(WEB1)
    assert reply(WEB1).digest == before.digest
    assert reply(WEB1, WEB2).digest != before.digest
    other = entry("web01.example.com", {**WEB1.facts, "uptime": "9 days"}, roles=["web"])
    expected = before.digest
    assert reply(other).digest == expected, "an address matters in a fact hash, uptime does not"
    moved = entry("web01.example.com", {**WEB1.facts, "ipaddress": "10.0.0.77"}, roles=["web"])
    assert reply(moved).digest != before.digest
    pql = "facts[value] { name = 'uptime' }"
    first = reply(WEB1, function="puppetdb_query", query=pql)
    assert reply(other, function="puppetdb_query", query=pql).digest != first.digest
    nodes = reply(WEB1, function="puppetdb_query", query="nodes { }")
    later = InventoryEntry.from_dict({**WEB1.to_dict(), "at": 1.0})
    assert reply(later, function="puppetdb_query", query="nodes { }").digest == nodes.digest


def test_large_facts_of_a_hostile_node_do_not_disturb_queries_of_others() -> None:
    odd: Json = {"a": [0] * 100_000}
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


def test_the_text_of_a_question_is_the_call_and_no_larger_than_it_must_be() -> None:
    with pytest.raises(InvalidInputError, match="more than 128 KiB"):
        FunctionCall.of("query_facts", ["", ["x" * 1000] * 200])
    assert len(FunctionCall.of("query_nodes", ["a" * 5000]).text) < 1100
    assert FunctionCall.of("query_facts", ["a='b'", ["c"]]).text == 'query_facts("a=\'b\'", ["c"])'


def labels(function: str, *arguments: Any) -> dict[str, set[str]]:
    parts = FunctionCall.of(function, arguments).answer(inventory()).parts
    return {node.partition(".")[0]: set(about) for node, about in parts.items()}


@pytest.mark.parametrize(
    ("function", "arguments", "label"),
    [
        ("query_nodes", ["role=web", "ipaddress"], "ipaddress"),
        ("query_facts", ["role=web", ["networking.ip"]], "networking_ip"),
        ("query", ["role=web", ["networking.ip"]], "networking.ip"),
        ("query_resources", ["role=web", "Class[Apache]"], "Class[Apache]"),
        ("puppetdb_query", ["facts { name = 'ipaddress' and certname ~ 'web' }"], "ipaddress"),
        ("puppetdb_query", ["inventory[certname, facts.role] { facts.role = 'web' }"],
         "facts.role"),
    ],
)  # fmt: skip
def test_parts_have_the_names_of_values(function: str, arguments: list[Any], label: str) -> None:
    found = labels(function, *arguments)
    assert "web01" in found
    assert label in found["web01"]


def test_of_fact_hashes_only_essential_facts_are_parts() -> None:
    found = labels("servers_with_role", "web")
    assert {"fqdn", "hostname", "ipaddress", "role"} <= found["web01"]
    assert "processors" not in found["web01"]
    assert list(labels("server_with_role", "web")) == ["web01"]
    assert labels("server_with_role", "nosuch", "x") == {}


def test_answers_with_names_or_counts_have_no_parts_besides_the_nodes() -> None:
    assert labels("query_nodes", "role=web") == {"web01": set(), "web02": set()}
    counted = FunctionCall.of("puppetdb_query", ["inventory[count()] { facts.role = 'web' }"])
    parts = counted.answer(inventory()).parts
    assert set(map(str, parts)) == {"web01.example.com", "web02.example.com"}
    assert not any(parts.values())


def test_another_value_has_another_digest_of_many_nodes_one_each() -> None:
    parts = parts_of(["a", "b"], [("a", {"ip": "10.0.0.1"}), ("b", {"ip": "10.0.0.2"})])
    assert parts["a"]["ip"] != parts["b"]["ip"]
    assert parts == parts_of(["a", "b"], [("b", {"ip": "10.0.0.2"}), ("a", {"ip": "10.0.0.1"})])
    assert "10.0.0" not in str(parts)
    names = [f"n{index}" for index in range(DETAILED + 1)]
    parts = parts_of(names, [(name, {"ip": name, "os": "x"}) for name in names])
    assert all(set(about) == {""} for about in parts.values())
    assert parts["n1"] != parts["n2"]


@pytest.mark.parametrize(
    "query", ["environments { }", "fact_names { }", "environments[count()] { }"]
)
def test_an_empty_answer_has_no_parts(query: str) -> None:
    reply = FunctionCall.of("puppetdb_query", [query]).answer(inventory())
    assert (reply.names, reply.parts) == ((), {})
    assert reply.result
    assert len(reply.digest) == 64


MINE = [case for case in CASES if case["kind"] == "fact_query"]

FACTS: dict[str, Json] = {
    "hostname": "new",
    "uptime": "3 days",
    "uptime_days": 3,
    "role": "node",
    "operatingsystemrelease": "12.4",
    "is_virtual": True,
    "os": {"family": "Debian"},
    "ips": ["10.0.0.5", "10.0.0.6"],
    "ports": [22, 443],
    "none": [],
    "tier": ["front", "back"],
    "empty": "",
}


def answer(text: str, hostname: str = "new") -> FunctionReply:
    node = entry("new.example.net", {**FACTS, "hostname": hostname}, roles=["node"])
    return FunctionCall.of("servers_with_facts", [text]).answer(MemoryInventory([node]))


@pytest.mark.parametrize("case", MINE, ids=lambda case: case["id"])
def test_corpus(case: dict[str, Any]) -> None:
    hostname = re.search(r"hostname=''?(a+!)", case.get("context", ""))
    before = time.process_time()
    try:
        reply = answer(str(case["input"]), hostname[1] if hostname else "new")
    except InvalidInputError as error:
        assert case["expect"] == "reject"
        assert re.search(case["message"], str(error), re.IGNORECASE), str(error)
        assert str(error).isprintable()
        return
    # The corpus leaves it open to refuse nested quantifiers or to answer in time.
    linear = case["id"] == "fq-redos" and bool(hostname)
    assert case["expect"] == "accept" or linear
    if linear:
        assert time.process_time() - before < case["max_seconds"]
    assert bool(reply.names) == case.get("match", False)
    if "message" in case and case["expect"] == "accept":
        assert any(re.search(case["message"], warning) for warning in reply.warnings)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("os.family=Debian", True),
        ("os.family == Debian", True),
        ("os.family!=Debian", False),
        ("os.family!=RedHat", True),
        ("os.nosuch!=x", False),
        ("ips.1=10.0.0.6", True),
        ("ips=10.0.0.5", True),
        ("ips=10.0.0.6", True),
        ("ips=10.0.0.7", False),
        ("ips!=10.0.0.6", False),
        ("ips!=10.0.0.7", True),
        ("ips=~[.]6$", True),
        ("ips!~[.]6$", False),
        ("ips!~[.]7$", True),
        ("ports>80", True),
        ("ports>443", False),
        ("os=family", True),
        ("os!=family", False),
        ("os=Debian", False),
        ("os!=Debian", True),
        ("none!=x", True),
        ("none!~x", True),
        ("none=x", False),
        ("tier=front", True),
        ("tier=back", True),
        ("tier!=back", False),
        ("uptime_days=3.0", True),
        ("uptime_days<3", False),
        ("uptime_days=<3", True),
        ("uptime_days=>3", True),
        ("hostname=~^n", True),
        ("hostname=~/^N/", False),
        ("hostname!=/^n/", False),
        ("hostname!~/^x/", True),
        ("hostname=/new", False),
        ("is_virtual=yes", False),
        ("role=node", True),
        ("role!=node", False),
        ("fqdn=new.example.net", True),
    ],
)
def test_expressions(text: str, matches: bool) -> None:
    assert bool(answer(text).names) == matches


@pytest.mark.parametrize("text", ["a=", "=b", "a", "a<>b", "a===b", "a>b", "a><1", "  ", "a=~/(/"])
def test_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        answer(text)


def test_a_warning_names_an_array_with_a_member_that_is_not_a_number() -> None:
    assert answer("ports>80").warnings == ()
    (warning,) = answer("ips>80").warnings
    assert "the fact ips is not a number on new.example.net" in warning


def test_no_character_of_a_value_has_a_meaning() -> None:
    for value in ('x" or certname ~ ".*', "' or 1=1 --", "*", "%", "a and b=c", "${x}"):
        assert ask("servers_with_facts", f"hostname={value}") == []
