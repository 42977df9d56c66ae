"""From plans to groups, and which nodes need which others."""

from dataclasses import replace

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.rollout.deciding import (
    MAX_CHECKS,
    needed,
    of_plan,
    one_group,
    only,
    places_of,
)
from localpuppet.rollout.events import ExportDependency, NodeRun
from localpuppet.rollout.plan import PlanSelection, make_plan
from localpuppet.rollout.site import Check, EnvironmentSite, SiteComponent
from tests.rollout.simulated import node


def part(
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


def test_a_plan_becomes_groups_with_checks_and_consumers() -> None:
    parts = (
        part(1, produces="sql"),
        part(2, consumes="sql", produces="http", checks=("http://b/", "http://a/")),
        part(3, consumes="sql http", checks=(("/bin/probe",), "http://a/")),
        part(3, produces="own", consumes=""),
        part(3, consumes="own", checks=("http://a/",)),
    )
    site = EnvironmentSite(environment="e", applications=("shop",), components=parts)
    plan = make_plan(site, PlanSelection(), where="")
    found = of_plan(plan)
    assert found.groups == ((node(1),), (node(2),), (node(3),))
    assert found.title == "shop"
    consumers = found.consumers
    assert consumers == {node(1): (node(2), node(3)), node(2): (node(3),)}
    assert needed([node(1)], consumers) == [(node(1), node(2)), (node(1), node(3))]
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
    narrowed = only(found, {node(3), node(1)})
    assert narrowed.groups == ((node(1),), (node(3),))
    assert narrowed.checks == {NodeRun(2, node(3)): of_third}, "the groups have moved up"


def test_dependencies_between_many_nodes_are_stored_once() -> None:
    """Each checkpoint is written in full: a thousand and a thousand must not be a million names."""
    names = [f"p{number}" for number in range(30)]
    makers = tuple(part(number, produces=name) for number, name in enumerate(names))
    users = tuple(part(number, consumes=" ".join(names)) for number in range(50, 80))
    site = EnvironmentSite(environment="e", applications=("shop",), components=(*makers, *users))
    (need,) = of_plan(make_plan(site, PlanSelection(), where="")).needs
    assert (len(need.producers), len(need.consumers)) == (30, 30)


def test_there_is_a_most_of_checks_that_follow_a_run() -> None:
    parts = tuple(
        part(1, produces=f"p{number}", checks=(f"http://a/{number}",))
        for number in range(MAX_CHECKS + 1)
    )
    for count, refused in ((MAX_CHECKS, False), (MAX_CHECKS + 1, True)):
        site = EnvironmentSite(environment="e", applications=("shop",), components=parts[:count])
        plan = make_plan(site, PlanSelection(), where="")
        if refused:
            with pytest.raises(InvalidInputError, match="101 checks follow a run of n01"):
                of_plan(plan)
        else:
            assert len(of_plan(plan).checks[NodeRun(1, node(1))]) == count


def test_the_title_has_the_declared_applications_and_the_roles_of_other_nodes() -> None:
    """If an application of a node is declared, the title leaves out the role of the node."""
    related = replace(part(1, produces="asks"), application="role db", declared=False)
    asks = replace(part(2, consumes="asks"), application="role lb", declared=False)
    site = EnvironmentSite(
        environment="e",
        applications=("role db", "role lb", "shop"),
        components=(part(1), related, asks),
    )
    assert of_plan(make_plan(site, PlanSelection(), where="")).title == "shop, role lb"


def test_a_node_that_only_queries_another_does_not_need_it() -> None:
    asks = replace(part(2, consumes="asks"), declared=False)
    parts = (replace(part(1, produces="asks"), declared=False), asks)
    plan = make_plan(
        EnvironmentSite(environment="e", applications=("shop",), components=parts),
        PlanSelection(),
        where="",
    )
    assert of_plan(plan).groups == ((node(1),), (node(2),))
    assert of_plan(plan).consumers == {}


def test_places_come_from_a_fact_and_a_missing_value_is_an_error() -> None:
    assert places_of({node(1): "ams", node(2): 3}, "zone") == {node(1): "ams", node(2): "3"}
    with pytest.raises(InvalidInputError, match=r"no single value of fact 'zone' for n01.*, n03"):
        places_of({node(3): {"a": 1}, node(1): None, node(2): "ams"}, "zone")


def test_a_selection_without_nodes_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="matches no node"):
        one_group([], title="")
    with pytest.raises(InvalidInputError, match="matches no node"):
        only(one_group([node(1)], title=""), {node(2)})
    found = one_group([node(2), node(1)], title="two\x1b" + "x" * 200)
    assert found.groups == ((node(1), node(2)),)
    assert found.title.isprintable()
    assert len(found.title) == 100
