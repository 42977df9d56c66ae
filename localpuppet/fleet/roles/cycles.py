"""Find cycles: roles that make each other run.

- A cycle consists of nodes and is named by their roles. If web01 kicks lb01 and lb02 kicks web02,
  no node makes itself run, so there is no cycle.
- For each strongly connected component of nodes, the shortest cycle through each step is reported
  once.
- Nodes of one role that only query or collect from each other are no cycle: that is how a cluster
  discovers its members.
- A cycle with a step that is only a query or a collector ends when the answer stays the same.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.roles.graph import JUNCTION, Graph, several_places, strong_components
from localpuppet.fleet.roles.links import ANSWERS, LinkReason, NodeLink

MAX_CYCLES = 50
# Role → the roles that it makes run, and the reasons.
_Steps = dict[str, dict[str, frozenset[LinkReason]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """Roles that make each other run.

    Attributes:
        path: The roles in order; the first is repeated at the end.
        by: The reasons of each step.
    """

    path: tuple[str, ...]
    by: tuple[frozenset[LinkReason], ...]

    @property
    def shown(self) -> str:
        """Return the cycle as text: `haproxy -> web -> haproxy`."""
        return " -> ".join(self.path)

    @property
    def settles(self) -> bool:
        """Return whether it ends when an answer stays the same."""
        return any(step <= ANSWERS for step in self.by)

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "path": list(self.path),
            "by": [[*sorted(map(str, step))] for step in self.by],
            "settles": self.settles,
        }


def cycles_of(links: Sequence[NodeLink], names: Mapping[NodeName, str]) -> tuple[Cycle, ...]:
    """Return the cycles of links, the shortest first.

    Args:
        links: The links between nodes.
        names: The role of each node.
    """
    nodes = list(names)
    place = {node: index for index, node in enumerate(nodes)}
    successors: list[list[int]] = [[] for _ in nodes]
    for link in links:
        junction = len(successors)
        successors.append([place[end] for end in link.ends])
        for start in link.starts:
            successors[place[start]].append(junction)
    places = [*range(len(nodes)), *[JUNCTION] * len(links)]
    graph = Graph(places=places, successors=successors)
    number, count = strong_components(graph)
    cycles: dict[tuple[str, ...], Cycle] = {}
    for tangle in several_places(graph, number, count):
        inside = frozenset(node for node in nodes if number[place[node]] == tangle)
        steps = _steps(
            [link for index, link in enumerate(links, len(nodes)) if number[index] == tangle],
            inside,
            names,
        )
        for cycle in _shortest(steps):
            cycles.setdefault(cycle.path, cycle)
    return tuple(sorted(cycles.values(), key=lambda item: (len(item.path), item.path))[:MAX_CYCLES])


def _steps(
    links: Sequence[NodeLink], inside: frozenset[NodeName], names: Mapping[NodeName, str]
) -> _Steps:
    """Return the steps between roles within a strongly connected component of nodes."""
    steps: _Steps = {}
    for link in links:
        starts, ends = link.starts & inside, link.ends & inside
        for start in {names[node] for node in starts}:
            for end in {names[node] for node in ends}:
                if start == end and (link.by in ANSWERS or len(starts | ends) < 2):
                    continue
                why = steps.setdefault(start, {})
                why[end] = why.get(end, frozenset()) | {link.by}
    return steps


def _shortest(steps: _Steps) -> list[Cycle]:
    """Return the shortest cycle through each step."""
    cycles = []
    for start in sorted(steps):
        for end in sorted(steps[start]):
            way = _way(steps, end, start)
            if way is not None:
                cycles.append(_cycle(way, steps))
    return cycles


def _way(steps: _Steps, start: str, end: str) -> list[str] | None:
    """Return a shortest path between two roles, both included; `None` if there is no path."""
    came_from = {start: start}
    waiting = deque([start])
    while waiting and end not in came_from:
        role = waiting.popleft()
        for other in sorted(steps.get(role, ())):
            if other not in came_from:
                came_from[other] = role
                waiting.append(other)
    if end not in came_from:
        return None
    way = [end]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]


def _cycle(way: list[str], steps: _Steps) -> Cycle:
    """Return the cycle of a path whose end leads to its start, from the first role by name."""
    first = way.index(min(way))
    path = (*way[first:], *way[:first], way[first])
    return Cycle(path=path, by=tuple(steps[start][end] for start, end in pairwise(path)))
