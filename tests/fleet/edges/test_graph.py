"""Graphs against naive reachability."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.fleet.edges.links import (
    JUNCTION,
    Graph,
    loop_through,
    merge,
    several_places,
    strong_components,
)
from tests.rollout.test_plan import reachable

SIZE = 8
pairs = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=20)
places = st.lists(st.integers(JUNCTION, 2), min_size=SIZE, max_size=SIZE)


def graph(edges: list[tuple[int, int]], where: list[int]) -> Graph:
    return Graph(
        places=where,
        successors=[[end for start, end in edges if start == vertex] for vertex in range(SIZE)],
    )


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
def test_merged_vertices_keep_the_edges_to_others(
    edges: list[tuple[int, int]], where: list[int]
) -> None:
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


def test_without_two_places_there_is_no_such_loop() -> None:
    edges = [(0, 4), (4, 0)]
    with pytest.raises(ValueError, match="no edge"):
        loop_through(graph(edges, [0] * 4 + [JUNCTION] * 4), [0, 4])
