"""Schedule the turns of each place of a graph (a node of a plan): as early and as few as possible.

1. An edge between two places is a step; an edge within a place is free, because a turn does all
   that its place can do by then.
2. A place that is on no loop of places has one turn.
3. A vertex's level is the longest path to it, in steps; there are as many turns as levels.
4. Places on a loop have more than one turn. (A loop of vertices is rejected before.) These turns
   are found from the end: a place has a turn only when one of its vertices cannot have an earlier
   one, and then the turn does all of its vertices that no later one needs. So no turn can be left
   out. (The least number of turns over all places is the shortest common supersequence problem,
   which is NP-hard.)

A junction has no turn. It passes on the highest level and the place of its origin, because an edge
back to the same place is free; or two places, if two have that level.
"""

from collections.abc import Sequence

from localpuppet.base.value import Value
from localpuppet.fleet.roles.links import (
    JUNCTION,
    Graph,
    merge,
    predecessors,
    several_places,
    strong_components,
)

NEVER = 1 << 60


class LoopError(Exception):
    """The graph has a loop through several places.

    Args:
        loops: The number of such loops (strongly connected components).
        members: The vertices of the first one, in the original graph.
    """

    def __init__(self, loops: int, members: list[int]) -> None:
        super().__init__(f"{loops} loops")
        self.loops = loops
        self.members = members


class LevelSchedule(Value):
    """The schedule.

    Attributes:
        times: The turn of each vertex, from 0; `JUNCTION` for junctions.
        last: The last turn; -1 if no vertex has a place.
        chain: A longest path. Each element has the vertices of one place in one turn, and waits for
            the one before it.
    """

    times: Sequence[int]
    last: int
    chain: Sequence[Sequence[int]]


def turns(graph: Graph) -> LevelSchedule:
    """Return the schedule of a graph.

    Raises:
        LoopError: Vertices of several places wait for each other in a circle.
    """
    number, count = _by_place(graph)
    joined = merge(graph, number, count)
    inner, inner_count = strong_components(joined)
    looping = set().union(*several_places(joined, inner, inner_count).values())
    if looping:
        number, count = _apart(graph, number, count, looping)
        joined = merge(graph, number, count)
        inner, inner_count = strong_components(joined)
        if loops := several_places(joined, inner, inner_count):
            first = min(loops)
            members = [vertex for vertex, item in enumerate(number) if inner[item] == first]
            raise LoopError(len(loops), members)
    ordered = merge(joined, inner, inner_count)
    levels = _Levels(ordered)
    times = _Sweep(ordered, levels.levels).times() if looping else levels.levels
    of_vertex = [inner[item] for item in number]
    first_of_last = next(
        (item for item in of_vertex if levels.levels[item] == levels.top), JUNCTION
    )
    chain: dict[int, list[int]] = {vertex: [] for vertex in levels.chain(first_of_last)}
    for vertex, component in enumerate(of_vertex):
        if component in chain and graph.places[vertex] != JUNCTION:
            chain[component].append(vertex)
    return LevelSchedule(
        times=[
            JUNCTION if place == JUNCTION else times[of_vertex[vertex]]
            for vertex, place in enumerate(graph.places)
        ],
        last=levels.top,
        chain=list(chain.values()),
    )


def _by_place(graph: Graph) -> tuple[list[int], int]:
    """Number the vertices by place: those of one place have its number."""
    levels, following = [], max(graph.places, default=JUNCTION) + 1
    for place in graph.places:
        levels.append(following if place == JUNCTION else place)
        following += place == JUNCTION
    return levels, following


def _apart(
    graph: Graph, number: Sequence[int], count: int, looping: set[int]
) -> tuple[list[int], int]:
    """Give each vertex of the looping places a separate number."""
    levels = list(number)
    for vertex, place in enumerate(graph.places):
        if place in looping:
            levels[vertex] = count
            count += 1
    return levels, count


class _Levels:
    """The longest path to each vertex of a graph whose numbers are in topological order."""

    def __init__(self, graph: Graph) -> None:
        size = len(graph)
        self._graph = graph
        self.levels = [JUNCTION if place == JUNCTION else 0 for place in graph.places]
        self._before = [JUNCTION] * size  # the previous vertex of the longest path
        # At junctions: the vertex of the highest level, and one of another place with that level.
        self._first = [JUNCTION] * size
        self._second = [JUNCTION] * size
        for vertex, place in enumerate(graph.places):
            if place != JUNCTION:
                for other in graph.successors[vertex]:
                    self._arrive(other, vertex)
            else:
                for other in graph.successors[vertex]:
                    for origin in (self._first[vertex], self._second[vertex]):
                        if origin != JUNCTION:
                            self._arrive(other, origin)
        self.top = max(self.levels, default=JUNCTION)

    def _arrive(self, vertex: int, origin: int) -> None:
        """Record that a vertex needs `origin`."""
        places, levels = self._graph.places, self.levels
        if places[vertex] != JUNCTION:
            level = levels[origin] + (places[origin] != places[vertex])
            if level > levels[vertex]:
                levels[vertex], self._before[vertex] = level, origin
            return
        first = self._first[vertex]
        if first == JUNCTION or levels[origin] > levels[first]:
            self._first[vertex], self._second[vertex] = origin, JUNCTION
        elif levels[origin] == levels[first] and places[origin] != places[first]:
            self._second[vertex] = origin

    def chain(self, end: int) -> list[int]:
        """Return a longest path to a vertex with a place."""
        path = [] if self.top == JUNCTION else [end]
        while path and self._before[path[-1]] != JUNCTION:
            path.append(self._before[path[-1]])
        return path[::-1]


class _Sweep:
    """Gives every vertex its latest possible turn, with as few turns as rule 4 says.

    Time runs from the last level to the first. A vertex is ready when all vertices that need it
    have their turns; its deadline is the lowest turn in which one needs it. A deadline has the
    place of that vertex, or `JUNCTION` for several places.
    """

    def __init__(self, graph: Graph, levels: Sequence[int]) -> None:
        size = len(graph)
        self._graph = graph
        self._levels = levels
        self._predecessors = predecessors(graph)
        self._unsettled = [len(below) for below in graph.successors]
        self._low = [NEVER] * size
        self._low_place = [JUNCTION] * size
        self._times = [JUNCTION] * size
        self._now = max(levels, default=0)
        self._ready: dict[int, list[int]] = {}
        self._soon: list[int] = []

    def times(self) -> list[int]:
        """Return the turn of each vertex; `JUNCTION` for junctions."""
        due: list[list[int]] = [[] for _ in range(self._now + 1)]
        for vertex, level in enumerate(self._levels):
            if level != JUNCTION:
                due[level].append(vertex)
        for vertex, below in enumerate(self._graph.successors):
            if not below:
                self._settle(vertex)
        while due:
            for vertex in due.pop():
                if self._times[vertex] == JUNCTION:
                    self._take_turn(self._graph.places[vertex])
            for vertex in self._soon:
                self._ready.setdefault(self._graph.places[vertex], []).append(vertex)
            self._soon = []
            self._now -= 1
        return self._times

    def _take_turn(self, place: int) -> None:
        """Give a place a turn: all vertices that are ready, and those that become ready by that."""
        ready = self._ready.setdefault(place, [])
        while ready:
            vertex = ready.pop()
            self._times[vertex] = self._now
            self._low[vertex], self._low_place[vertex] = self._now, place
            self._settle(vertex)

    def _settle(self, vertex: int) -> None:
        """Propagate a vertex's deadline after all vertices that need it are settled.

        A vertex with a place and without a turn becomes ready; others settle their predecessors.
        """
        waiting = [vertex]
        while waiting:
            vertex = waiting.pop()
            if self._graph.places[vertex] != JUNCTION and self._times[vertex] == JUNCTION:
                self._make_ready(vertex)
                continue
            for before in self._predecessors[vertex]:
                self._need(before, vertex)
                self._unsettled[before] -= 1
                if self._unsettled[before] == 0:
                    waiting.append(before)

    def _make_ready(self, vertex: int) -> None:
        place = self._graph.places[vertex]
        deadline = self._low[vertex] - (place != self._low_place[vertex])
        if deadline >= self._now:
            self._ready.setdefault(place, []).append(vertex)
        else:
            self._soon.append(vertex)

    def _need(self, vertex: int, other: int) -> None:
        """Record when a vertex is needed by another, which has its turn or is a junction."""
        time, place = self._low[other], self._low_place[other]
        if time < self._low[vertex]:
            self._low[vertex], self._low_place[vertex] = time, place
        elif time == self._low[vertex] and place != self._low_place[vertex]:
            self._low_place[vertex] = JUNCTION
