"""The order of a plan against a naive model, for every small site that Hypothesis thinks of."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.plan import Plan, PlanSelection, make_plan
from localpuppet.rollout.site import EnvironmentSite
from tests.rollout.sites import (
    Drawn,
    circles,
    document,
    drawn_sites,
    edges,
    first_times,
    looping_nodes,
    reachable,
    shuffled,
    site,
    word_of,
)

EVERYTHING = PlanSelection()


def plan(drawn: Drawn, selection: PlanSelection = EVERYTHING) -> Plan:
    return make_plan(site(drawn), selection, where="site")


@given(drawn_sites)
def test_a_site_is_refused_exactly_if_components_of_several_nodes_are_in_a_circle(
    drawn: Drawn,
) -> None:
    if circles(site(drawn).components):
        with pytest.raises(InvalidInputError, match="cycle"):
            plan(drawn)
    else:
        plan(drawn)


@given(drawn_sites)
def test_every_consumer_has_a_run_after_the_runs_of_all_its_producers(drawn: Drawn) -> None:
    components = site(drawn).components
    assume(not circles(components))
    found = plan(drawn)
    settled = {one: run.group for run in found.runs for one in run.components}
    assert set(settled) == set(components)
    for before, after in edges(components):
        assert settled[before] + (before.node != after.node) <= settled[after]


@given(drawn_sites)
def test_no_run_can_be_left_out(drawn: Drawn) -> None:
    components = site(drawn).components
    assume(not circles(components))
    word = word_of(plan(drawn))
    assert first_times(word, components) is not None
    for run in word:
        assert first_times([other for other in word if other != run], components) is None


@given(drawn_sites)
def test_only_nodes_on_a_circle_of_nodes_run_more_than_once(drawn: Drawn) -> None:
    components = site(drawn).components
    assume(not circles(components))
    assert set(plan(drawn).repeated()) <= looping_nodes(components)


@given(drawn_sites)
def test_there_are_no_empty_groups_and_the_chain_has_a_run_of_each(drawn: Drawn) -> None:
    components = site(drawn).components
    assume(not circles(components))
    found = plan(drawn)
    assert all(found.groups)
    assert [link.group for link in found.chain] == list(range(1, len(found.groups) + 1))
    word = word_of(found)
    for link in found.chain:
        assert (link.group, link.node) in word
    for before, after in zip(found.chain, found.chain[1:], strict=False):
        assert before.node != after.node
        assert any(
            after.capability in producer.produces and after.capability in consumer.consumes
            for producer in components
            for consumer in components
            if (producer.node, consumer.node) == (before.node, after.node)
        )


@given(drawn_sites, st.data())
def test_the_order_of_the_document_does_not_matter(drawn: Drawn, order: st.DataObject) -> None:
    assume(not circles(site(drawn).components))
    other = EnvironmentSite.from_dict(shuffled(document(drawn), order), where="site")  # type: ignore[arg-type]
    assert make_plan(other, EVERYTHING, where="site") == plan(drawn)


@given(drawn_sites, st.sets(st.integers(0, 4), min_size=1))
def test_narrowed_to_nodes_the_order_through_the_others_stays(
    drawn: Drawn, numbers: set[int]
) -> None:
    components = site(drawn).components
    assume(not circles(components))
    names = {f"n{number}" for number in numbers} & {str(one.node) for one in components}
    assume(names)
    found = plan(drawn, PlanSelection(nodes=tuple(NodeName(name) for name in names)))
    assert set(found.nodes) == names
    settled = {one: run.group for run in found.runs for one in run.components}
    for before, after in reachable(edges(components)):
        if before in settled and after in settled:
            assert settled[before] <= settled[after]
            if before.node != after.node:
                assert settled[before] < settled[after]
    assert all(found.groups)


def test_two_nodes_that_need_each_other_run_twice() -> None:
    # a and b each have a database that the other's web server needs.
    found = plan([(0, [0], []), (0, [], [1]), (1, [1], []), (1, [], [0])])
    assert word_of(found) == [(1, "n0"), (1, "n1"), (2, "n0"), (2, "n1")]


def test_a_node_waits_if_a_later_single_run_is_enough_for_all() -> None:
    # n0 has a part that nothing precedes, and a part that waits for n1; n2 and n3 need one each.
    found = plan([(0, [0], []), (0, [1], [2]), (1, [2], []), (2, [], [0]), (3, [], [1])])
    assert word_of(found) == [(1, "n1"), (2, "n0"), (3, "n2"), (3, "n3")]


def test_components_on_a_single_node_share_a_run() -> None:
    found = plan([(0, [0], [1]), (0, [1], [0]), (0, [2], [2])])
    assert word_of(found) == [(1, "n0")]


def test_a_capability_that_its_own_node_and_another_need_comes_first() -> None:
    # n1's first part is needed by its own last one and by n0; the run that does the last one, which
    # waits for n0, is too late for n0.
    found = plan([(1, [0, 1], []), (0, [], [1]), (0, [0], []), (1, [], [0, 1])])
    assert word_of(found) == [(1, "n0"), (1, "n1"), (2, "n0"), (2, "n1")]
