"""Plans: narrowed, refused, of hostile sizes, against a naive model; and their groups."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.deciding import (
    MAX_CHECKS,
    consumers_of,
    needed,
    of_plan,
    one_group,
    places_of,
)
from localpuppet.rollout.events import ExportDependency, NodeRun
from localpuppet.rollout.plan import ChainRun, Plan, PlanSelection, make_plan
from localpuppet.rollout.site import Check, EnvironmentSite, SiteComponent
from tests.rollout.make import node

LAMP = json.loads((Path(__file__).parents[1] / "data" / "environment-lamp.json").read_text())


def plan(raw: dict[str, Any], *, instances: tuple[str, ...] = (), nodes: str = "") -> Plan:
    selection = PlanSelection(
        instances=instances, nodes=tuple(NodeName.parse(node) for node in nodes.split())
    )
    return make_plan(EnvironmentSite.from_dict(raw, where="site"), selection, where="site")


def groups(found: Plan) -> list[list[str]]:
    return [[str(run.node) for run in group] for group in found.groups]


def part(node: str, *, gives: str = "", needs: str = "") -> dict[str, Any]:
    return {"node": node, "produces": gives.split(), "consumes": needs.split()}


def site(**parts: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose applications are the first letters of the parts' names."""
    applications: dict[str, dict[str, Any]] = {}
    for name, body in parts.items():
        applications.setdefault(name[0], {})[name] = body
    return {"applications": applications}


def refusal(raw: dict[str, Any], **selection: Any) -> str:
    with pytest.raises(InvalidInputError) as refused:
        plan(raw, **selection)
    assert refused.value.exit_code == 2
    return str(refused.value)


def test_puppets_own_environment_graph() -> None:
    found = plan(LAMP)
    web = ["dev2.devco.net", "dev3.devco.net", "dev4.devco.net"]
    assert groups(found) == [["dev1.devco.net"], web]
    assert found.applications == ("Lamp[app1]", "Lamp[app2]")
    assert found.groups[0][0].by_application() == {
        "Lamp[app1]": ["Lamp::Mysql[app1]"],
        "Lamp[app2]": ["Lamp::Mysql[app2]"],
    }
    assert found.chain == (
        ChainRun(group=1, node=NodeName("dev1.devco.net"), capability=None),
        ChainRun(group=2, node=NodeName("dev2.devco.net"), capability="Sql[app1]"),
    )


def test_an_instance_is_planned_alone_and_counted_alone() -> None:
    found = plan(LAMP, instances=("Lamp[app2]",))
    assert found.applications == ("Lamp[app2]",)
    assert found.groups[0][0].by_application() == {"Lamp[app2]": ["Lamp::Mysql[app2]"]}


def test_nodes_are_planned_in_the_order_that_leads_through_others() -> None:
    raw = site(
        a_db=part("db", gives="sql"),
        a_app=part("app", needs="sql", gives="http"),
        a_lb=part("lb", needs="http"),
    )
    found = plan(raw, nodes="db lb")
    assert groups(found) == [["db"], ["lb"]]
    assert found.external_capabilities == ("http",)
    assert [link.capability for link in found.chain] == [None, None]


def test_without_the_nodes_between_two_runs_of_a_node_become_a_single_run() -> None:
    raw = site(
        a_1=part("x", gives="p"), a_2=part("y", needs="p", gives="q"), a_3=part("x", needs="q")
    )
    assert groups(plan(raw)) == [["x"], ["y"], ["x"]]
    assert groups(plan(raw, nodes="x")) == [["x"]]


def test_a_selection_that_matches_no_node_is_refused() -> None:
    raw = site(a_1=part("x"), b_1=part("y"))
    raw["applications"]["empty"] = {}
    assert groups(plan(raw)) == [["x", "y"]]
    assert refusal(raw, instances=("empty",)) == "site: the selection matches no node"
    assert refusal(raw, instances=("a",), nodes="y") == (
        "site: node y has no component of the selected applications"
    )


@pytest.mark.parametrize(
    ("raw", "selection", "message"),
    [
        (LAMP, {"instances": ("Lamp[app3]",)}, "unknown application instance 'Lamp[app3]' (did yo"),
        (LAMP, {"nodes": "dev9.devco.net"}, "unknown node 'dev9.devco.net' (did you mean"),
        (
            site(a_1=part("x", needs="p"), a_2=part("y", needs="p q")),
            {},
            "nothing produces p, which a_1 of a on x consumes (and 2 more like this) "
            "(add its producer, or remove it from 'consumes')",
        ),
        (
            site(a_1=part("x", needs="p"), a_2=part("y", gives="p"), b_1=part("z", gives="p")),
            {"instances": ("a",)},
            "p, which a_1 of a on x consumes, is produced by b_1 of b on z, which is not "
            "selected (add --instance 'b')",
        ),
    ],
)
def test_a_plan_without_a_name_that_it_needs_is_refused(
    raw: dict[str, Any], selection: dict[str, Any], message: str
) -> None:
    assert refusal(raw, **selection).startswith(f"site: {message}")


def test_a_circle_is_named_with_its_components_nodes_and_capabilities() -> None:
    raw = site(
        a_0=part("w", gives="o"),
        a_1=part("x", needs="o r", gives="p"),
        a_2=part("x", needs="p", gives="q"),
        b_1=part("y", needs="q", gives="r"),
        b_2=part("z", needs="r"),
    )
    assert refusal(raw) == (
        "site: the order has a cycle: a_2 of a on x -> q -> b_1 of b on y -> r -> a_1 of a on x "
        "-> p -> a_2 of a on x (remove one of these from 'consumes')"
    )
    assert "the order has a cycle" in refusal(raw, nodes="w"), "also where it is not selected"


def test_the_error_for_a_thousand_cycles_is_short() -> None:
    parts = {}
    for number in range(1_000):
        parts[f"a{number}"] = part("x", gives=f"p{number}", needs=f"q{number}")
        parts[f"b{number}"] = part("y", gives=f"q{number}", needs=f"p{number}")
    message = refusal(site(**parts))
    assert "999 more cycles" in message
    assert len(message) < 300


def test_a_circle_through_everything_is_shortened() -> None:
    size = 3_000
    parts = {
        f"a{number}": part(f"n{number}", gives=f"c{number}", needs=f"c{(number - 1) % size}")
        for number in range(size)
    }
    message = refusal(site(**parts))
    assert "a0 of a on n0 -> c0 -> a1 of a on n1" in message
    assert f"… {2 * size + 1 - 12} more …" in message
    assert len(message) < 500


@pytest.mark.parametrize(("size", "nodes"), [(20_000, 20_000), (2_000, 2)])
def test_a_long_chain_of_runs_is_as_many_groups(size: int, nodes: int) -> None:
    """Of as many nodes, or of two that alternate."""
    parts = {
        f"a{number}": part(
            f"n{number % nodes}", gives=f"c{number}", needs=f"c{number - 1}" * (number > 0)
        )
        for number in range(size)
    }
    found = plan(site(**parts))
    assert len(found.groups) == len(found.chain) == size
    assert [run.node for run in found.runs] == [f"n{number % nodes}" for number in range(size)]
    assert len(found.repeated()) == (2 if nodes == 2 else 0)


def test_a_capability_of_many_producers_and_consumers_is_not_multiplied_out() -> None:
    size = 20_000
    parts = {f"a{number}": part(f"a{number}", gives="c") for number in range(size)}
    parts |= {f"b{number}": part(f"b{number}", needs="c") for number in range(size)}
    found = plan(site(**parts))  # 400 million pairs would not end in time, nor fit
    assert [len(group) for group in found.groups] == [size, size]


T = TypeVar("T")


# Of each component: node, produces, consumes; all as small numbers.
Drawn = list[tuple[int, list[int], list[int]]]
Word = list[tuple[int, str]]  # runs: group and node

drawn_sites = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(st.integers(0, 6), max_size=2),
        st.lists(st.integers(0, 6), max_size=2),
    ),
    max_size=9,
)


def document(drawn: Drawn) -> dict[str, object]:
    """Return the document of a site; it consumes only what a component produces."""
    produced = {name for _, names, _ in drawn for name in names}
    applications: dict[str, dict[str, object]] = {"App[0]": {}, "App[1]": {}}
    for index, (number, produces, consumes) in enumerate(drawn):
        applications[f"App[{index % 2}]"][f"Part[{index}]"] = {
            "node": f"n{number}",
            "produces": [f"C[{name}]" for name in produces],
            "consumes": [f"C[{name}]" for name in consumes if name in produced],
        }
    return {"applications": applications}


def drawn_site(drawn: Drawn) -> EnvironmentSite:
    """Return the site itself."""
    return EnvironmentSite.from_dict(document(drawn), where="site")  # type: ignore[arg-type]


def edges(components: Iterable[SiteComponent]) -> list[tuple[SiteComponent, SiteComponent]]:
    """Return the order of components: every pair of a producer and its consumer."""
    found = list(components)
    return [
        (before, after)
        for before in found
        for after in found
        if set(before.produces) & set(after.consumes)
    ]


def reachable(pairs: Iterable[tuple[T, T]]) -> set[tuple[T, T]]:
    """Return the transitive closure."""
    found = set(pairs)
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


def circles(components: Iterable[SiteComponent]) -> list[tuple[SiteComponent, SiteComponent]]:
    """Return pairs on different nodes that wait for each other."""
    closure = reachable(edges(components))
    return [
        (before, after)
        for before, after in closure
        if (after, before) in closure and before.node != after.node
    ]


def first_times(word: Word, components: Iterable[SiteComponent]) -> dict[SiteComponent, int] | None:
    """Return when each component is settled if these runs are done; `None` if one never is.

    A component is settled by the first run of its node that comes after the runs that settled all
    of its producers on other nodes, and not before those on its own.
    """
    found = dict.fromkeys(components, 0)
    pairs = edges(found)
    groups: dict[str, list[int]] = {}
    for group, name in sorted(word):
        groups.setdefault(name, []).append(group)
    while True:
        old = dict(found)
        for one in found:
            least = max(
                (
                    found[before] + (before.node != one.node)
                    for before, after in pairs
                    if after == one
                ),
                default=0,
            )
            later = [group for group in groups.get(one.node, []) if group >= least]
            if not later:
                return None
            found[one] = later[0]
        if found == old:
            return found


def word_of(plan: Plan) -> Word:
    """Return the runs of a plan."""
    return [(run.group, run.node) for run in plan.runs]


def looping_nodes(components: Iterable[SiteComponent]) -> set[object]:
    """Return the nodes that a reader of nodes alone sees in a circle."""
    closure = reachable(
        (before.node, after.node)
        for before, after in edges(components)
        if before.node != after.node
    )
    return {before for before, after in closure if before == after}


def shuffled(raw: Mapping[str, object], order: st.DataObject) -> dict[str, object]:
    """Return the same document with everything in another order."""
    applications = raw["applications"]
    assert isinstance(applications, dict)
    return {
        "applications": {
            name: {
                part: {
                    key: order.draw(st.permutations(value)) if isinstance(value, list) else value
                    for key, value in body.items()
                }
                for part, body in order.draw(st.permutations(list(applications[name].items())))
            }
            for name in order.draw(st.permutations(list(applications)))
        }
    }


EVERYTHING = PlanSelection()


def drawn_plan(drawn: Drawn, selection: PlanSelection = EVERYTHING) -> Plan:
    return make_plan(drawn_site(drawn), selection, where="site")


@given(drawn_sites)
def test_every_plan(drawn: Drawn) -> None:
    """Only a circle of components of several nodes is refused; otherwise a plan keeps its rules."""
    components = drawn_site(drawn).components
    if circles(components):
        with pytest.raises(InvalidInputError, match="cycle"):
            drawn_plan(drawn)
        return
    found = drawn_plan(drawn)
    settled = {one: run.group for run in found.runs for one in run.components}
    assert set(settled) == set(components)
    for before, after in edges(components):
        assert settled[before] + (before.node != after.node) <= settled[after]
    word = word_of(found)
    assert first_times(word, components) is not None
    for run in word:
        rest = [other for other in word if other != run]
        assert first_times(rest, components) is None, "no run can be left out"
    assert set(found.repeated()) <= looping_nodes(components), "only nodes of a circle run again"
    assert all(found.groups)
    assert [link.group for link in found.chain] == list(range(1, len(found.groups) + 1))
    assert {(link.group, link.node) for link in found.chain} <= set(word)
    for link, later in pairwise(found.chain):
        assert link.node != later.node
        assert any(
            later.capability in producer.produces and later.capability in consumer.consumes
            for producer in components
            for consumer in components
            if (producer.node, consumer.node) == (link.node, later.node)
        )


@given(drawn_sites, st.data())
def test_the_order_of_the_document_does_not_matter(drawn: Drawn, order: st.DataObject) -> None:
    assume(not circles(drawn_site(drawn).components))
    other = EnvironmentSite.from_dict(shuffled(document(drawn), order), where="site")  # type: ignore[arg-type]
    assert make_plan(other, EVERYTHING, where="site") == drawn_plan(drawn)


@given(drawn_sites, st.sets(st.integers(0, 4), min_size=1))
def test_narrowed_to_nodes_the_order_of_all_stays(drawn: Drawn, numbers: set[int]) -> None:
    components = drawn_site(drawn).components
    assume(not circles(components))
    names = {f"n{number}" for number in numbers} & {str(one.node) for one in components}
    assume(names)
    found = drawn_plan(drawn, PlanSelection(nodes=tuple(NodeName(name) for name in names)))
    assert set(found.nodes) == names
    settled = {one: run.group for run in found.runs for one in run.components}
    for before, after in reachable(edges(components)):
        if before in settled and after in settled:
            assert settled[before] <= settled[after]
            if before.node != after.node:
                assert settled[before] < settled[after]
    assert all(found.groups)


@pytest.mark.parametrize(
    ("drawn", "word"),
    [
        pytest.param(
            # a and b each have a database that the other's web server needs.
            [(0, [0], []), (0, [], [1]), (1, [1], []), (1, [], [0])],
            [(1, "n0"), (1, "n1"), (2, "n0"), (2, "n1")],
            id="two nodes that need each other run twice",
        ),
        pytest.param(
            # n0 has a part that nothing precedes, and one that waits for n1; n2, n3 need one each.
            [(0, [0], []), (0, [1], [2]), (1, [2], []), (2, [], [0]), (3, [], [1])],
            [(1, "n1"), (2, "n0"), (3, "n2"), (3, "n3")],
            id="a node waits if a later single run is enough for all",
        ),
        pytest.param(
            [(0, [0], [1]), (0, [1], [0]), (0, [2], [2])],
            [(1, "n0")],
            id="components of a single node share a run",
        ),
        pytest.param(
            # n1's first part is needed by its own last one and by n0; the run that does the last
            # one, which waits for n0, is too late for n0.
            [(1, [0, 1], []), (0, [], [1]), (0, [0], []), (1, [], [0, 1])],
            [(1, "n0"), (1, "n1"), (2, "n0"), (2, "n1")],
            id="a capability that its own node and another need comes first",
        ),
    ],
)
def test_runs_of_a_site(drawn: Drawn, word: Word) -> None:
    assert word_of(drawn_plan(drawn)) == word


def component(
    number: int, *, produces: str = "", consumes: str = "", checks: tuple[Check, ...] = ()
) -> SiteComponent:
    return SiteComponent(
        application="shop",
        name=f"c{number}{produces}{consumes}",
        node=node(number),
        produces=tuple(produces.split()),
        consumes=tuple(consumes.split()),
        checks=checks,
    )


def plan_of(*parts: SiteComponent, nodes: tuple[NodeName, ...] = ()) -> Plan:
    names = tuple(sorted({one.application for one in parts}))
    site = EnvironmentSite(environment="e", applications=names, components=parts)
    return make_plan(site, PlanSelection(nodes=nodes), where="")


def test_a_plan_becomes_groups_with_checks_and_consumers() -> None:
    parts = (
        component(1, produces="sql"),
        component(2, consumes="sql", produces="http", checks=("http://b/", "http://a/")),
        component(3, consumes="sql http", checks=(("/bin/probe",), "http://a/")),
        component(3, produces="own", consumes=""),
        component(3, consumes="own", checks=("http://a/",)),
    )
    found = of_plan(plan_of(*parts))
    assert found.groups == ((node(1),), (node(2),), (node(3),))
    assert found.title == "shop"
    consumers = consumers_of(found.needs)
    assert consumers == {node(1): (node(2), node(3)), node(2): (node(3),)}
    texts = [f"{node(other)} consumes what {node(1)} produces" for other in (2, 3)]
    assert needed([node(1)], consumers) == texts
    assert needed([node(1), node(2), node(3)], consumers) == []
    assert found.needs == (
        ExportDependency(producers=(node(2),), consumers=(node(3),)),
        ExportDependency(producers=(node(1),), consumers=(node(2), node(3))),
    )
    of_third = (("/bin/probe",), "http://a/")
    assert found.checks == {
        NodeRun(2, node(2)): ("http://b/", "http://a/"),
        NodeRun(3, node(3)): of_third,
    }
    narrowed = of_plan(plan_of(*parts, nodes=(node(1), node(3))))
    assert narrowed.groups == ((node(1),), (node(3),))
    assert narrowed.checks == {NodeRun(2, node(3)): of_third}, "the groups have moved up"


def test_dependencies_between_many_nodes_are_stored_once() -> None:
    """Each checkpoint is written in full: a thousand and a thousand must not be a million names."""
    names = [f"p{number}" for number in range(30)]
    makers = tuple(component(number, produces=name) for number, name in enumerate(names))
    users = tuple(component(number, consumes=" ".join(names)) for number in range(50, 80))
    (need,) = of_plan(plan_of(*makers, *users)).needs
    assert (len(need.producers), len(need.consumers)) == (30, 30)


def test_there_is_a_most_of_checks_that_follow_a_run() -> None:
    parts = [
        component(1, produces=f"p{number}", checks=(f"http://a/{number}",))
        for number in range(MAX_CHECKS + 1)
    ]
    assert len(of_plan(plan_of(*parts[:-1])).checks[NodeRun(1, node(1))]) == MAX_CHECKS
    with pytest.raises(InvalidInputError, match="101 checks follow a run of n01"):
        of_plan(plan_of(*parts))


def test_the_title_has_the_declared_applications_and_the_roles_of_other_nodes() -> None:
    """If an application of a node is declared, the title leaves out the role of the node."""
    related = replace(component(1, produces="asks"), application="role db", declared=False)
    asks = replace(component(2, consumes="asks"), application="role lb", declared=False)
    assert of_plan(plan_of(component(1), related, asks)).title == "shop, role lb"


def test_a_node_that_only_queries_another_does_not_need_it() -> None:
    asks = replace(component(2, consumes="asks"), declared=False)
    found = of_plan(plan_of(replace(component(1, produces="asks"), declared=False), asks))
    assert (found.groups, consumers_of(found.needs)) == (((node(1),), (node(2),)), {})


def test_places_come_from_a_fact_and_a_missing_value_is_an_error() -> None:
    assert places_of({node(1): "ams", node(2): 3}, "zone") == {node(1): "ams", node(2): "3"}
    with pytest.raises(InvalidInputError, match=r"no single value of fact 'zone' for n01.*, n03"):
        places_of({node(3): {"a": 1}, node(1): None, node(2): "ams"}, "zone")


def test_a_selection_without_nodes_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="matches no node"):
        one_group([], title="")
    found = one_group([node(2), node(1)], title="two\x1b" + "x" * 200)
    assert found.groups == ((node(1), node(2)),)
    assert found.title.isprintable()
    assert len(found.title) == 100
