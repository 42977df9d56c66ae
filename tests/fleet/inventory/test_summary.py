"""Facts of all nodes for people: counted, and as lines."""

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.summary import counts, lines
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import entry

NODES = [
    entry("a.example.com", at=1.0, roles=("web", "db"), facts={"os": {"family": "Debian"}, "n": 1}),
    entry("b.example.com", at=1.0, roles=("web",), facts={"os": {"family": "Debian"}, "n": None}),
    entry("c.example.com", at=1.0, facts={"os": "odd"}),
]


def test_values_are_counted_also_for_nodes_without_one() -> None:
    nodes = MemoryInventory(NODES)
    assert counts(nodes, "os.family") == [("Debian", 2), ("-", 1)]
    assert counts(nodes, "n") == [("-", 2), ("1", 1)]
    assert counts(nodes, "role") == [("web", 2), ("-", 1), ("db", 1)]
    assert counts(nodes, "osfamily") == [("Debian", 2), ("-", 1)]
    assert counts(MemoryInventory([]), "role") == []


def test_facts_become_lines() -> None:
    facts: dict[str, Json] = {"b": {"y": [1, "ü"], "x": {}}, "a": True}
    assert list(lines(facts)) == [("a", "true"), ("b.x", "{}"), ("b.y", '[1, "ü"]')]
