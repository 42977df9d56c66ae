"""From plans to groups, and who needs whom."""

import pytest

from localpuppet.errors import InvalidInputError
from localpuppet.orchestrator.plan import Selection, make_plan
from localpuppet.orchestrator.rollout.selecting import (
    consumers_of,
    groups_of,
    needed,
    one_group,
    only,
)
from localpuppet.orchestrator.site import Component, Site
from tests.orchestrator.rollout.simulated import node


def part(number: int, *, produces: str = "", consumes: str = "") -> Component:
    return Component(
        application="shop",
        name=f"c{number}{produces}{consumes}",
        node=node(number),
        produces=tuple(produces.split()),
        consumes=tuple(consumes.split()),
        checks=(),
    )


def test_the_groups_of_a_plan_and_who_consumes_what_whom_produces() -> None:
    parts = (
        part(1, produces="sql"),
        part(2, consumes="sql", produces="http"),
        part(3, consumes="sql http"),
        part(3, produces="own", consumes=""),
        part(3, consumes="own"),
    )
    site = Site(environment="e", applications=("shop",), components=parts)
    plan = make_plan(site, Selection(), where="")
    groups = groups_of(plan)
    assert groups == ((node(1),), (node(2),), (node(3),))
    consumers = consumers_of(plan)
    assert consumers == {node(1): (node(2), node(3)), node(2): (node(3),)}
    assert needed([node(1)], consumers) == [(node(1), node(2)), (node(1), node(3))]
    assert needed([node(1), node(2), node(3)], consumers) == []
    assert only(groups, {node(3), node(1)}) == ((node(1),), (node(3),))


def test_what_matches_no_node_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="matches no node"):
        one_group([])
    with pytest.raises(InvalidInputError, match="matches no node"):
        only(((node(1),),), {node(2)})
    assert one_group([node(2), node(1)]) == ((node(1), node(2)),)
