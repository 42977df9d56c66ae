"""The parts of an answer, by node."""

from typing import Any

import pytest

from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.query.parts import DETAILED, parts_of
from tests.fleet.inventory.query.fleet import inventory


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
        (
            "puppetdb_query",
            ["inventory[certname, facts.role] { facts.role = 'web' }"],
            "facts.role",
        ),
    ],
)
def test_parts_of_an_answer_have_the_names_of_its_values(
    function: str, arguments: list[Any], label: str
) -> None:
    found = labels(function, *arguments)
    assert "web01" in found
    assert label in found["web01"]


def test_of_whole_fact_hashes_only_essential_facts_are_parts() -> None:
    found = labels("servers_with_role", "web")
    assert {"fqdn", "hostname", "ipaddress", "role"} <= found["web01"]
    assert "processors" not in found["web01"]


def test_an_answer_of_a_single_server_has_only_its_parts() -> None:
    assert list(labels("server_with_role", "web")) == ["web01"]
    assert labels("server_with_role", "nosuch", "x") == {}


def test_answers_with_names_or_counts_have_no_parts_besides_the_nodes() -> None:
    assert labels("query_nodes", "role=web") == {"web01": set(), "web02": set()}
    counted = FunctionCall.of("puppetdb_query", ["inventory[count()] { facts.role = 'web' }"])
    parts = counted.answer(inventory()).parts
    assert set(map(str, parts)) == {"web01.example.com", "web02.example.com"}
    assert not any(parts.values())


def test_another_value_has_another_digest_and_no_value_is_kept() -> None:
    parts = parts_of(["a", "b"], [("a", {"ip": "10.0.0.1"}), ("b", {"ip": "10.0.0.2"})])
    assert parts["a"]["ip"] != parts["b"]["ip"]
    assert parts == parts_of(["a", "b"], [("b", {"ip": "10.0.0.2"}), ("a", {"ip": "10.0.0.1"})])
    assert "10.0.0" not in str(parts)


def test_an_answer_of_many_nodes_has_a_single_digest_for_each() -> None:
    names = [f"n{index}" for index in range(DETAILED + 1)]
    told = [(name, {"ip": name, "os": "x"}) for name in names]
    parts = parts_of(names, told)
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
