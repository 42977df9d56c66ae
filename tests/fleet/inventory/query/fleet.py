"""Entries of a small fleet, for tests of queries."""

from collections.abc import Sequence
from functools import cache

from localpuppet.base.formats.names import ClassName, EnvironmentName, NodeName, RunId
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.doubles.inventory import MemoryInventory

RUN = RunId("20261122T040000.000000Z-abcd")


def entry(
    name: str,
    facts: dict[str, Json] | None = None,
    *,
    roles: Sequence[str] = (),
    classes: Sequence[str] = (),
    environment: str | None = None,
) -> InventoryEntry:
    return InventoryEntry(
        node=NodeName(name),
        at=1_795_000_000.25,
        run=RUN,
        release="foo/tags/r1",
        environment=None if environment is None else EnvironmentName(environment),
        facts=facts or {},
        roles=tuple(roles),
        classes=tuple(map(ClassName, classes)),
    )


DB = entry(
    "db01.example.com",
    {
        "networking": {"ip": "10.0.0.9", "hostname": "db01"},
        "os": {"family": "RedHat", "release": {"full": "9.4", "major": "9"}},
        "processors": {"count": 8, "models": ["AMD", "AMD"]},
        "uptime": "12 days",
        "trusted": {"certname": "web01.example.com"},
    },
    roles=("db", "backup"),
    classes=("postgresql::server",),
    environment="testing",
)
LB = entry("lb01.example.com", {"uptime": "20"}, roles=("lb",), classes=("haproxy",))
WEB1 = entry(
    "web01.example.com",
    {
        "networking": {
            "ip": "10.0.0.1",
            "hostname": "web01",
            "interfaces": {
                "eth0": {"ip": "10.0.0.1", "mac": "aa:01"},
                "eth0.5": {"ip": "10.5.0.1"},
            },
        },
        "os": {"family": "Debian", "release": {"full": "12.11", "major": "12"}},
        "processors": {"count": 4, "models": ["Intel", "Intel"]},
        "is_virtual": True,
        "uptime": "3 days",
        "cluster": "blue",
    },
    roles=("web",),
    classes=("apache", "profile::web"),
)
WEB2 = entry(
    "web02.example.com",
    {
        "networking": {"ip": "10.0.0.2", "hostname": "web02"},
        "os": {"family": "Debian", "release": {"full": "10.2", "major": "10"}},
        "processors": {"count": 16, "models": ["Intel"]},
        "is_virtual": False,
        "osfamily": "its own word",
    },
    roles=("web",),
    classes=("apache",),
)
FLEET = (DB, LB, WEB1, WEB2)


@cache
def inventory() -> MemoryInventory:
    return MemoryInventory(FLEET)


def ask(function: str, *arguments: Json) -> Json:
    """Return what a function returns for the fleet."""
    return FunctionCall.of(function, arguments).answer(inventory()).result


def short(names: Json) -> list[str]:
    assert isinstance(names, list)
    return [str(name).partition(".")[0] for name in names]
