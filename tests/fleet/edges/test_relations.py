"""Which nodes make which others run, from entries: links, roles and cycles; graphs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.formats.values import Json
from localpuppet.fleet.edges.cycles import Relations, asks_the_same, closed_cycles, relations
from localpuppet.fleet.edges.links import (
    JUNCTION,
    DerivedReader,
    Graph,
    LinkReason,
    links_of,
    loop_through,
    merge,
    several_places,
    strong_components,
)
from localpuppet.fleet.exports.collectors import Search, as_query
from localpuppet.fleet.exports.recording import CollectorRecord
from localpuppet.fleet.inventory.entry import CatalogQuery, ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import entry
from tests.fleet.make import resource
from tests.rollout.test_plan import reachable


def node(
    name: str,
    *roles: str,
    kicks: tuple[str, ...] = (),
    asks: tuple[str, ...] = (),
    paths: tuple[tuple[str, ...], ...] = (),
) -> InventoryEntry:
    queries = tuple(CatalogQuery(text=text, digest="0") for text in asks)
    more: dict[str, Any] = {"kicks": kicks, "queries": queries, "paths": paths}
    return entry(f"{name}.example.com", at=1, roles=roles, **more)


def role(name: str) -> str:
    return f'role="{name}"'


def asks(name: str) -> str:
    return f'servers_with_role("{name}")'


def collects(kind: str, condition: Json) -> str:
    return CollectorRecord(type=kind, filter=condition, at="").question


def of(*entries: InventoryEntry, by: tuple[LinkReason, ...] = tuple(LinkReason)) -> Relations:
    return relations(links_of(MemoryInventory(sorted(entries, key=lambda one: one.node))), by=by)


def edges(found: Relations) -> list[tuple[str, str, str]]:
    return [(edge.start, edge.end, str(edge.by)) for edge in found.edges]


def shown(found: Relations) -> list[str]:
    return [cycle.shown for cycle in found.cycles]


def test_a_load_balancer_that_asks_and_is_kicked_is_no_cycle() -> None:
    kicks = (role("haproxy"),)
    web = [node(name, "web", kicks=kicks) for name in ("web01", "web02")]
    found = of(*web, node("lb01", "haproxy", asks=(asks("web"),)))
    assert edges(found) == [("web", "haproxy", "kick"), ("web", "haproxy", "query")]
    assert found.cycles == ()
    assert [(one.name, len(one.nodes)) for one in found.roles] == [("haproxy", 1), ("web", 2)]
    assert found.edges[0].texts == (role("haproxy"),)


def test_the_predecessors_cycle_is_named() -> None:
    lb = node("lb", "haproxy", kicks=(role("web"),))
    found = of(node("n", "web", kicks=(role("haproxy"),)), lb)
    assert shown(found) == ["haproxy -> web -> haproxy"]
    assert not found.cycles[0].settles


def test_a_cycle_of_roles_without_a_cycle_of_nodes_does_not_count() -> None:
    found = of(
        node("web01", "web", kicks=('fqdn="lb01.example.com"',)),
        node("web02", "web"),
        node("lb01", "haproxy"),
        node("lb02", "haproxy", kicks=('fqdn="web02.example.com"',)),
    )
    assert len(found.edges) == 2
    assert found.cycles == ()


def test_two_nodes_of_a_role_form_a_cycle_by_kicks_and_not_by_queries() -> None:
    kicks = (role("db"),)
    assert edges(of(node("db01", "db", kicks=kicks))) == []
    both = of(node("db01", "db", kicks=kicks), node("db02", "db", kicks=kicks))
    assert shown(both) == ["db -> db"]
    cluster = of(node("db01", "db", asks=(asks("db"),)), node("db02", "db", asks=(asks("db"),)))
    assert edges(cluster) == [("db", "db", "query")]
    assert cluster.cycles == ()


def test_a_cycle_through_an_answer_settles_and_can_be_left_out() -> None:
    entries = [
        node("web01", "web", kicks=(role("haproxy"),), asks=('server_with_role("haproxy", null)',)),
        node("lb01", "haproxy"),
    ]
    found = of(*entries)
    assert shown(found) == ["haproxy -> web -> haproxy"]
    assert found.cycles[0].settles
    assert found.cycles[0].to_dict()["by"] == [["query"], ["kick"]]
    assert of(*entries, by=(LinkReason.KICK, LinkReason.TRIGGER)).cycles == ()


def test_each_cycle_of_a_tangle_is_named_once_and_the_shortest_first() -> None:
    found = of(
        node("a", "a", kicks=(role("b"),)),
        node("b", "b", kicks=(role("a"), role("c"))),
        node("c", "c", kicks=(role("d"),)),
        node("d", "d", kicks=(role("a"),)),
        node("e", "e", kicks=(role("a"),)),
    )
    assert shown(found) == ["a -> b -> a", "a -> b -> c -> d -> a"]


def test_a_trigger_is_shown_if_neither_kick_nor_query_explains_it() -> None:
    found = of(
        node("web01", "web", kicks=(role("haproxy"),)),
        node("lb01", "haproxy", paths=(("web01.example.com",),)),
        node("db01", paths=(("gone.example.com",), ("web01.example.com", "lb01.example.com"))),
    )
    assert edges(found) == [("haproxy", "db01.example.com", "trigger"), ("web", "haproxy", "kick")]


def test_invalid_queries_and_kicks_without_a_receiver_are_listed() -> None:
    bad = ('servers_with_role("a…)', "x", "no()")
    found = of(node("a", "a", kicks=("role=", role("nosuch")), asks=bad), node("b", "b"))
    assert edges(found) == [("a", 'no node: role="nosuch"', "kick")]
    assert len(found.notes) == 4
    assert all("of a.example.com is not understood" in note for note in found.notes)


def test_a_collector_links_the_exporting_nodes_to_its_node() -> None:
    exports = {
        f"{name}.example.com": [resource("Sshkey", name, tag, key="AAAA", port=22)]
        for name, tag in (("web01", "dmz"), ("web02", "lan"), ("lb01", "lan"))
    }
    nodes = [
        node("lb01", "haproxy", asks=(collects("Sshkey", ["tag", "==", "DMZ"]),)),
        node("web01", "web", asks=(collects("Sshkey", None), 'collect("Sshkey", [1])')),
        node("web02", "web", asks=('collect("Sshkey")',)),
    ]
    said = [replace(one, exports=ExportsSummary(count=1, digest="0" * 64)) for one in nodes]
    links = links_of(MemoryInventory(said, exports=exports))
    found = relations(links)
    linked = [("haproxy", "web"), ("web", "haproxy"), ("web", "web")]
    assert edges(found) == [(start, end, "collect") for start, end in linked]
    assert shown(found) == ["haproxy -> web -> haproxy"]
    assert found.cycles[0].settles
    assert len(found.notes) == 2
    (dmz,) = [one for one in links.links if "DMZ" in one.text]
    assert dmz.starts == {"web01.example.com"}
    assert dmz.written == "Sshkey <<| tag == 'DMZ' |>>"
    too_long: Json = [["tag", "==", "x" * 600], "or", ["tag", "==", "y" * 600]]
    assert collects("File", too_long) == 'collect("File", null)'


@pytest.mark.parametrize(
    ("condition", "titles"),
    [
        (["port", "==", 22], ["lb01", "web01", "web02"]),
        (["port", "!=", 22], []),
        (["opts", "==", {"on": [1]}], ["web02"]),
        (["tag", "==", ["dmz", "nosuch"]], ["web01"]),
        ([["title", "==", "web02"], "or", ["tag", "!=", "lan"]], ["web01", "web02"]),
        ([["key", "==", "AAAA"], "and", ["title", "!=", "lb01"]], ["web01", "web02"]),
    ],
)
def test_a_query_finds_whom_a_collector_takes_from(condition: Json, titles: list[str]) -> None:
    offers = [
        resource("Sshkey", name, tag, key="AAAA", port=22, opts={"on": on})
        for name, tag, on in (("lb01", "lan", []), ("web01", "dmz", [2]), ("web02", "lan", [1]))
    ]
    search = Search.parse(condition)
    assert [one.title for one in offers if search.matches(one)] == titles
    said = replace(node("a"), exports=ExportsSummary(count=3, digest="0" * 64))
    reader = MemoryInventory([said], exports={"a.example.com": offers})
    question = FunctionCall.of("query_resources", [False, as_query("Sshkey", search)])
    rows = question.answer(reader).result
    assert isinstance(rows, list)
    assert [one["title"] for one in rows if isinstance(one, dict)] == titles


@pytest.mark.parametrize(
    "condition",
    [
        '[["key"], "==", "AAAA"]',
        '[["key", "==", "A", "B"], "==", "x"]',
        '["key", "~", "AAAA"]',
        '["key", "=="]',
    ],
)
def test_a_collector_that_no_catalog_has_is_noted(condition: str) -> None:
    asking = node("b", "b", asks=(f'collect("Sshkey", {condition})',))
    said = replace(node("a", "a"), exports=ExportsSummary(count=1, digest="0" * 64))
    exports = {"a.example.com": [resource("Sshkey", "x", key="AAAA")]}
    found = links_of(MemoryInventory([said, asking], exports=exports))
    assert [link.written for link in found.links] == []
    assert "of b.example.com is not understood" in found.notes[0]


def test_queries_that_take_too_long_are_counted_and_report_no_new_cycle() -> None:
    fleet = MemoryInventory(
        [node("a", "a", kicks=(role("b"), role("c"))), node("b", "b", kicks=(role("a"),))]
    )
    found = links_of(fleet, lambda: True)
    assert (found.unanswered, found.links) == (3, ())
    assert relations(found).to_dict()["unanswered"] == 3
    asked = iter([False] * 4)
    assert closed_cycles(fleet, None, fleet.listed[1], lambda: next(asked, True)) == []


@pytest.mark.parametrize("name", ["a", "m", "z"])
def test_another_entry_can_replace_the_entry_of_a_node(name: str) -> None:
    before = MemoryInventory([node("b"), node("m")])
    after = DerivedReader(before, entry=node(name, "new"))
    names = [str(one.node).partition(".")[0] for one in after.entries()]
    assert names == sorted({"b", "m", name})
    assert next(one for one in after.entries() if one.node.startswith(name)).roles == ("new",)


def test_only_cycles_that_a_node_closes_are_reported_to_it() -> None:
    loop = [node("a", "a", kicks=(role("b"),)), node("b", "b", kicks=(role("a"),))]
    fleet = MemoryInventory([*loop, node("lb", "haproxy", asks=(asks("web"),)), node("w", "web")])
    _, _, lb, web = fleet.listed
    assert closed_cycles(fleet, lb, node("lb", "haproxy", kicks=(role("a"),))) == []
    now = node("w", "web", asks=(asks("haproxy"),))
    for holds in (fleet, MemoryInventory([*fleet.listed[:3], now])):
        for before in (web, None):
            found = closed_cycles(holds, before, now)
            assert [one.shown for one in found] == ["haproxy -> web -> haproxy"]
        assert closed_cycles(holds, now, now) == []
    assert asks_the_same(now, now)
    assert not asks_the_same(now, web)


class Joined(MemoryInventory):
    """An inventory that a node joins once its entries have been read.

    Args:
        before: The entries, sorted by the node's name.
        comes: The entry of the node that joins, whose name is the last.
    """

    def __init__(self, *before: InventoryEntry, comes: InventoryEntry) -> None:
        super().__init__(before)
        self._comes = comes

    def entries(self) -> Iterator[InventoryEntry]:
        yield from super().entries()
        if self._comes not in self.listed:
            self.add(self._comes)


@pytest.mark.parametrize(
    "lb",
    [node("lb", "haproxy", asks=(asks("web"),)), node("lb", "haproxy", kicks=(role("web"),))],
    ids=["asks", "kicks"],
)
def test_a_node_that_joins_during_an_evaluation_is_linked_the_next_time(lb: InventoryEntry) -> None:
    comes = node("web02", "web", kicks=(role("haproxy"),), asks=(asks("haproxy"),))
    for others in [(), (node("web01", "web"),)]:
        fleet = Joined(lb, *others, comes=comes)
        found = relations(links_of(fleet))
        # A kick that reaches only the node that has just joined is not lost.
        assert [one.name for one in found.roles] == (["haproxy", "web"] if others else [])
        assert not found.cycles
        assert shown(relations(links_of(fleet))) == ["haproxy -> web -> haproxy"]


def test_evaluating_a_query_of_another_node_ends_at_the_deadline() -> None:
    others = [node(f"n{number}") for number in range(20)]
    inventory = MemoryInventory([node("evil", kicks=("a=1",)), *others])
    looks = iter(range(100))
    found = links_of(inventory, lambda: next(looks) >= 1)
    assert (found.unanswered, found.links, found.lost) == (1, (), ())
    assert next(looks) == 2, "it kept reading"


SIZE = 8
pairs = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=20)
places = st.lists(st.integers(JUNCTION, 2), min_size=SIZE, max_size=SIZE)


def graph(edges: list[tuple[int, int]], where: list[int]) -> Graph:
    successors = [[end for start, end in edges if start == vertex] for vertex in range(SIZE)]
    return Graph(places=where, successors=successors)


@given(pairs, places)
def test_vertices_that_reach_each_other_have_one_number_and_edges_lead_upwards(
    edges: list[tuple[int, int]], where: list[int]
) -> None:
    closure = reachable(edges) | {(vertex, vertex) for vertex in range(SIZE)}
    number, count = strong_components(graph(edges, where))
    assert sorted(set(number)) == list(range(count))
    for one in range(SIZE):
        for other in range(SIZE):
            both = (one, other) in closure and (other, one) in closure
            assert (number[one] == number[other]) == both
    assert all(number[start] <= number[end] for start, end in edges)


@given(pairs, places)
def test_merged_vertices_keep_other_edges(edges: list[tuple[int, int]], where: list[int]) -> None:
    number, count = strong_components(graph(edges, where))
    merged = merge(graph(edges, where), number, count)
    found = {(start, end) for start, below in enumerate(merged.successors) for end in below}
    assert found == {(number[a], number[b]) for a, b in edges if number[a] != number[b]}
    assert all(len(set(below)) == len(below) for below in merged.successors)


def test_components_with_several_places_are_listed() -> None:
    edges = [(0, 1), (1, 0), (2, 3), (3, 2)]
    where = [0, 1, 2, 2, JUNCTION, JUNCTION, 0, 1]
    number, count = strong_components(graph(edges, where))
    assert several_places(graph(edges, where), number, count) == {number[0]: {0, 1}}


def test_a_loop_through_two_places_is_preferred_to_a_shorter_loop() -> None:
    # 0 and 1 are at one place and in a loop of their own by 4; 2 is elsewhere, by 5 and 6.
    edges = [(0, 4), (4, 1), (1, 4), (4, 0), (1, 5), (5, 2), (2, 6), (6, 0)]
    where = [0, 0, 1, 2, JUNCTION, JUNCTION, JUNCTION, 0]
    assert loop_through(graph(edges, where), [0, 1, 2, 4, 5, 6]) == [1, 5, 2, 6, 0, 4]
    with pytest.raises(ValueError, match="no edge"):
        loop_through(graph([(0, 4), (4, 0)], [0] * 4 + [JUNCTION] * 4), [0, 4])
