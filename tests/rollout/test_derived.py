"""The order that follows from the entries of nodes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.formats.names import EnvironmentName
from localpuppet.fleet.edges.links import links_of
from localpuppet.fleet.exports.recording import CollectorRecord
from localpuppet.fleet.inventory.entry import CatalogQuery, InventoryEntry, NodeComponent
from localpuppet.rollout.derived import MAX_PAIRS, MAX_TEXT, DerivedPlan, derive
from localpuppet.rollout.plan import PlanSelection, make_plan
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import entry


def part(name: str, produces: str = "", consumes: str = "") -> NodeComponent:
    return NodeComponent(
        name=name,
        application=f"Shop[{name[-2]}]",
        produces=tuple(produces.split()),
        consumes=tuple(consumes.split()),
    )


def node(name: str, *roles: str, asks: tuple[str, ...] = (), **more: Any) -> InventoryEntry:
    queries = tuple(CatalogQuery(text=text, digest="0") for text in asks)
    return entry(f"{name}.example.com", at=1, roles=roles, queries=queries, **more)


def role(name: str) -> str:
    return f'servers_with_role("{name}")'


def of(*entries: InventoryEntry, most: int = MAX_PAIRS) -> DerivedPlan:
    inventory = MemoryInventory(sorted(entries, key=lambda one: one.node))
    return derive(inventory.entries(), links_of(inventory), most=most)


def groups(found: DerivedPlan, *instances: str) -> list[list[str]]:
    plan = make_plan(found.site, PlanSelection(instances=instances), where="inventory")
    return [[run.node.partition(".")[0] for run in group] for group in plan.groups]


def test_components_of_catalogs_give_the_order_as_a_site_does() -> None:
    found = of(
        node("web", "web", components=(part("Web[a]", "http", "sql"),)),
        node("db", "db", components=(part("Sql[a]", "sql"), part("Backup[b]"))),
        node("lb", "lb", components=(part("Lb[a]", consumes="http"),)),
        node("alone"),
    )
    assert groups(found) == [["alone", "db"], ["web"], ["lb"]]
    assert found.site.applications == ("Shop[a]", "Shop[b]", "no role")
    assert groups(found, "Shop[a]") == [["db"], ["web"], ["lb"]]
    assert found.notes == ()


def test_a_node_that_queries_collects_or_is_kicked_runs_after_the_others() -> None:
    collects = CollectorRecord(type="sshkey", filter=None, at="").question
    found = of(
        node("db", "db", kicks=('role="web"',)),
        node("web1", "web"),
        node("web2", "web"),
        node("lb", "lb", asks=(role("web"), collects)),
        node("monitor", "monitor", asks=(role("lb"), role("absent"))),
    )
    assert groups(found) == [["db"], ["web1", "web2"], ["lb"], ["monitor"]]
    assert found.site.applications == ("role db", "role lb", "role monitor", "role web")
    (lb,) = [one for one in found.site.components if one.node == "lb.example.com"]
    assert (lb.name, lb.consumes) == ("catalog", ('answer to servers_with_role("web")',))


def test_two_relations_with_equal_shortened_names_stay_different() -> None:
    long = "x" * MAX_TEXT
    asks = tuple(f'servers_with_role("{long}","{one}")' for one in ("db", "web"))
    found = of(node("db", "db"), node("web", "web"), node("lb", "lb", asks=asks))
    (lb,) = [one for one in found.site.components if one.node == "lb.example.com"]
    name = f'answer to servers_with_role("{long}'[: len("answer to ") + MAX_TEXT]
    assert lb.consumes == (name, f"{name} [2]")
    assert groups(found) == [["db", "web"], ["lb"]]


def test_a_node_that_declares_and_asks_runs_once() -> None:
    found = of(
        node("db", "db", components=(part("Sql[a]", "sql"),), asks=(role("lb"),)),
        node("web", "web", components=(part("Web[a]", consumes="sql"),)),
        node("lb", "lb"),
    )
    assert groups(found) == [["lb"], ["db"], ["web"]]


def test_relations_in_both_directions_give_no_order_and_keep_that_of_others() -> None:
    """All nodes query all nodes; the monitor also queries two roles, which query the monitor."""
    all_nodes = 'query_nodes("os.family=Debian")'
    webs = [node(f"web{n}", "web", asks=(all_nodes, role("monitor"))) for n in (1, 2)]
    lb = node("lb", "lb", asks=(all_nodes, role("web"), role("monitor")))
    found = of(*webs, lb, node("monitor", "monitor", asks=(all_nodes, role("web"), role("lb"))))
    assert groups(found) == [["monitor", "web1", "web2"], ["lb"]]
    assert found.notes == (
        "no order between lb and monitor: each waits for the other",
        "no order between monitor and web: each waits for the other",
    )


def test_a_cycle_of_relations_gives_no_order_and_declared_components_win() -> None:
    circle = of(
        node("a", "a", asks=(role("c"),)),
        node("b", "b", asks=(role("a"),)),
        node("c", "c", asks=(role("b"),)),
    )
    assert groups(circle) == [["a", "b", "c"]]
    assert len(circle.notes) == 3
    declared = of(
        node("db", "db", components=(part("Sql[a]", "sql"),), asks=(role("web"),)),
        node("web", "web", components=(part("Web[a]", consumes="sql"),)),
    )
    assert groups(declared) == [["db"], ["web"]]
    assert declared.notes == ("no order between db and web: each waits for the other",)


def test_a_relation_between_too_many_nodes_gives_no_order_and_is_noted() -> None:
    webs = [node(f"web{n}", "web", components=(part(f"Web{n}[a]", f"{n}"),)) for n in (1, 2)]
    found = of(*webs, node("lb", "lb", asks=(role("web"),)), most=1)
    assert groups(found) == [["lb", "web1", "web2"]]
    (note,) = found.notes
    assert note.endswith("is between too many nodes to order them")


def test_the_environment_is_that_of_all_nodes() -> None:
    staging = EnvironmentName("staging")
    assert of(node("a", environment=staging)).site.environment == "staging"
    assert of(node("a", environment=staging), node("b")).site.environment == "production"
    assert of().site.components == ()


NAMES = ("a", "b", "c", "d")


@given(
    st.dictionaries(
        st.integers(0, 7),
        st.tuples(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES))),
        min_size=1,
    )
)
def test_relations_alone_make_no_plan_impossible(said: dict[int, tuple[str, set[str]]]) -> None:
    """With any queries, each node runs once, after the nodes that do not wait for it as well."""
    found = of(
        *(
            node(f"n{number}", mine, asks=tuple(map(role, sorted(asked))))
            for number, (mine, asked) in said.items()
        )
    )
    order = {name: step for step, group in enumerate(groups(found)) for name in group}
    assert sorted(order) == [f"n{number}" for number in sorted(said)]
    assert sum(map(len, groups(found))) == len(said)
    waits = {
        (f"n{one}", f"n{other}")
        for one, (_, asked) in said.items()
        for other, (theirs, _) in said.items()
        if theirs in asked
    }
    reached = {(one, other) for one, other in waits if one != other}
    while more := {(a, d) for a, b in reached for c, d in reached if b == c} - reached:
        reached |= more
    for one, other in waits:
        if (other, one) not in reached and one != other:
            assert order[one] > order[other]
