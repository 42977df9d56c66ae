"""Exported servers, and the queries that find them by their role."""

from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import from_record
from localpuppet.fleet.bus.bus_limits import MAX_SERVERS
from localpuppet.fleet.exports.collectors import servers_of
from localpuppet.fleet.inventory.admission import ClaimPolicy
from localpuppet.fleet.inventory.entry import ExportedServer, InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import entry
from tests.fleet.make import resource

NOW = 1_800_000_000.0


def server(role: str = "web", address: str | None = "10.0.0.1", since: float = 0) -> ExportedServer:
    return ExportedServer(role=role, ipaddress=address, ports=(80,), since=since)


def said(name: str, *servers: ExportedServer, **more: Any) -> InventoryEntry:
    return entry(f"{name}.example.com", at=NOW, servers=servers, **more)


FLEET = [
    said("a", server(since=30)),
    said("b", server(since=10), server("db", since=5)),
    said("c", server(since=1), roles=("web",)),
    said("d", server(since=20, address=None)),
    said("e", roles=("db",)),
]


def asked(function: str, *arguments: str) -> Any:
    return FunctionCall.of(function, arguments).answer(MemoryInventory(FLEET))


def test_exported_servers_come_behind_the_nodes_of_a_role_the_oldest_first() -> None:
    reply = asked("servers_with_role", "web")
    assert [one["fqdn"].partition(".")[0] for one in reply.result] == ["c", "b", "d", "a"]
    names = {"role": "web", "fqdn": "b.example.com", "hostname": "b"}
    assert reply.result[1] == {**names, "ipaddress": "10.0.0.1", "ports": [80]}
    assert [name[0] for name in reply.names] == ["a", "b", "c", "d"]
    assert set(reply.parts) == set(reply.names)
    both = asked("servers_with_role", "db", "web").result
    assert [one["fqdn"][0] for one in both] == ["c", "e", "b", "b", "d", "a"]


def test_a_single_server_is_the_first_one() -> None:
    assert asked("server_with_role", "web").result["fqdn"] == "c.example.com"
    assert asked("server_with_role", "web", "x").names == ("c.example.com",)
    only: Any = FunctionCall.of("server_with_role", ["web"]).answer(MemoryInventory(FLEET[:2]))
    assert (only.result["fqdn"], only.names) == ("b.example.com", ("b.example.com",))
    none = FunctionCall.of("server_with_role", ["nosuch", "y"]).answer(MemoryInventory(FLEET))
    assert (none.result, none.names) == ("y", ())


def test_a_role_and_an_address_are_claims() -> None:
    policy = ClaimPolicy.parse(b"a.example.com\tdb\t10.0.1.0/24\n", where="p")
    for one, reason in (
        (server("web", "10.0.1.1"), "may not claim the role 'web'"),
        (server("db", "10.0.0.1"), "may not claim the address 10.0.0.1"),
        (server("db", "010.0.1.1"), "what is not an address"),
    ):
        assert reason in str(policy.refusal(said("a", one)))
    assert policy.refusal(said("a", server("db", "10.0.1.1"))) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"role": ""}, "role is empty"),
        ({"role": "a\nb"}, "control character"),
        ({"ipaddress": 1}, "a string"),
        ({"ports": [True]}, "neither a number nor a text"),
        ({"ports": [{}]}, "neither a number nor a text"),
        ({"ports": list(range(65))}, "more than 64 ports"),
        ({"since": "x"}, "a number"),
    ],
)
def test_an_invalid_server_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        from_record(ExportedServer, {**server().to_dict(), **changed}, where="server")


def test_a_catalogs_servers_are_those_of_its_type() -> None:
    exported = resource("Server", "web", hostname="evil", ipaddress="10.0.0.1", ports=80)
    assert list(servers_of([exported, resource("Host", "web")])) == [server()]
    for wrong in (
        [resource("Server", "web", ipaddress=1)],
        [resource("Server", "web", ports={"a": 1})],
        [resource("Server", f"r{n}") for n in range(MAX_SERVERS + 1)],
    ):
        with pytest.raises(InvalidInputError):
            servers_of(wrong)
