"""Algorithms on directed graphs whose vertices may have a place: find loops, merge vertices.

In a plan, the place of a component is its node; capabilities are junctions, without a place. All
functions are deterministic, take linear time and use no recursion.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from localpuppet.base.value import Value

JUNCTION = -1  # place of a vertex without one


class Graph(Value):
    """A directed graph.

    Attributes:
        places: The place of each vertex, a number from 0, or `JUNCTION`.
        successors: For each vertex, the vertices that its edges lead to.
    """

    places: Sequence[int]
    successors: Sequence[Sequence[int]]

    def __len__(self) -> int:
        return len(self.places)


def predecessors(graph: Graph) -> list[list[int]]:
    """Return for each vertex the vertices whose edges lead to it."""
    before: list[list[int]] = [[] for _ in graph.places]
    for vertex, below in enumerate(graph.successors):
        for other in below:
            before[other].append(vertex)
    return before


def strong_components(graph: Graph) -> tuple[list[int], int]:
    """Return each vertex's strongly connected component, as a number, and how many there are.

    Two vertices have the same number if each can be reached from the other. Numbers are in
    topological order: an edge leads to the same number or to a higher one.

    The algorithm is Tarjan's (SIAM J. Comput. 1, 1972) with an explicit stack.
    """
    size = len(graph)
    order, low, number = [-1] * size, [0] * size, [-1] * size
    open_vertices: list[int] = []
    counter = number_of_components = 0
    for root in range(size):
        if order[root] >= 0:
            continue
        path = [(root, iter(graph.successors[root]))]
        order[root] = low[root] = counter
        counter += 1
        open_vertices.append(root)
        while path:
            vertex, rest = path[-1]
            for other in rest:
                if order[other] < 0:
                    order[other] = low[other] = counter
                    counter += 1
                    open_vertices.append(other)
                    path.append((other, iter(graph.successors[other])))
                    break
                if number[other] < 0 and order[other] < low[vertex]:
                    low[vertex] = order[other]
            else:
                path.pop()
                if path and low[vertex] < low[path[-1][0]]:
                    low[path[-1][0]] = low[vertex]
                if low[vertex] == order[vertex]:
                    number_of_components = _close(
                        vertex, open_vertices, number, number_of_components
                    )
    return [number_of_components - 1 - component for component in number], number_of_components


def _close(
    vertex: int, open_vertices: list[int], number: list[int], number_of_components: int
) -> int:
    """Number the component whose first vertex this is; return the new number of components."""
    while True:
        other = open_vertices.pop()
        number[other] = number_of_components
        if other == vertex:
            return number_of_components + 1


def merge(graph: Graph, number: Sequence[int], count: int) -> Graph:
    """Return the graph in which vertices of the same number are merged.

    Edges within a number are removed. The place is that of the merged vertices that have one.
    """
    places = [JUNCTION] * count
    edges: list[list[int]] = [[] for _ in range(count)]
    for new, place, below in zip(number, graph.places, graph.successors, strict=True):
        if place != JUNCTION:
            places[new] = place
        edges[new] += map(number.__getitem__, below)
    for new, numbers in enumerate(edges):
        if len(numbers) > 1:  # most have one: creating sets for them would take half of the time
            numbers[:] = set(numbers)
        if new in numbers:
            numbers.remove(new)
    return Graph(places=places, successors=edges)


def several_places(graph: Graph, number: Sequence[int], count: int) -> dict[int, set[int]]:
    """Return the numbers whose vertices have more than one place, with these places."""
    first = [JUNCTION] * count
    by_component: dict[int, set[int]] = {}
    for vertex, place in enumerate(graph.places):
        if place == JUNCTION:
            continue
        component = number[vertex]
        if first[component] == JUNCTION:
            first[component] = place
        elif first[component] != place:
            by_component.setdefault(component, {first[component]}).add(place)
    return by_component


def loop_through(graph: Graph, members: Iterable[int]) -> list[int]:
    """Return a loop through at least two places, by the first edge that leaves a place.

    Args:
        graph: The graph; every edge has a junction at exactly one of its ends.
        members: The vertices of a strongly connected component with at least two places.

    Returns:
        The vertices of the loop in order; the first is not repeated, and has a place.

    Raises:
        ValueError: The members have only one place.
    """
    inside = set(members)
    ends: dict[int, list[int]] = {}
    for start in sorted(inside):
        if graph.places[start] == JUNCTION:
            continue
        for junction in graph.successors[start]:
            if junction not in inside:
                continue
            if junction not in ends:
                ends[junction] = _two_places(graph, inside, junction)
            for end in ends[junction]:
                if graph.places[end] != graph.places[start]:
                    return [start, junction, *_path(graph, inside, end, start)[:-1]]
    raise ValueError("no edge of these leads to another place")


def _two_places(graph: Graph, inside: set[int], junction: int) -> list[int]:
    """Return the first vertex behind a junction, and the first with another place."""
    pair: list[int] = []
    for other in graph.successors[junction]:
        if other in inside and (not pair or graph.places[other] != graph.places[pair[0]]):
            pair.append(other)
            if len(pair) == 2:
                break
    return pair


def _path(graph: Graph, inside: set[int], start: int, end: int) -> list[int]:
    """Return a shortest path between two vertices that reach each other within a set."""
    came_from = {start: start}
    waiting = deque([start])
    while end not in came_from:
        vertex = waiting.popleft()
        for other in graph.successors[vertex]:
            if other in inside and other not in came_from:
                came_from[other] = vertex
                waiting.append(other)
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]
