"""The links between nodes (which make which others run, and why), and algorithms on graphs.

In a plan, the place of a component is its node; capabilities are junctions, without a place. All
functions are deterministic, take linear time and use no recursion.

- A link leads from the nodes that change to the nodes that run then. A kick leads to the nodes that
  it finds. A query leads from the nodes in its answer to the node that asks, and a collector from
  the nodes that export matching resources.
- Each question is answered once, even if several nodes ask it.
- A trigger is not declared: it is taken from the chains that led to a node's last run. It counts
  only if no kick and no query explains it.
- Each question is answered from the current inventory. A node that joined after the entries were
  read is left out; the next call includes it.
- If a node's kick or query cannot be parsed, the result has a note and the other links.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from itertools import pairwise
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.exports.collectors import Search, as_query
from localpuppet.fleet.exports.recording import COLLECT, collector_text
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.query.syntax import check_values
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.inventory.tables import EntryRows, NodeBrief, briefs


class EnoughError(Exception):
    """The caller stopped a long query; see `DerivedReader`."""


class DerivedReader:
    """An `InventoryReader` of another one.

    Args:
        entry: Replaces the entry of its node, but not the node's exports.
        enough: Returns whether to stop a query by `EnoughError`.
    """

    def __init__(
        self,
        reader: InventoryReader,
        *,
        entry: InventoryEntry | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reader = reader
        self._entry = entry
        self._enough = enough

    @property
    def revision(self) -> int:
        """Return the revision of the inventory."""
        return self._reader.revision

    def current_until(self) -> float | None:
        """Return when the inventory was last current."""
        return self._reader.current_until()

    def entries(self) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by name."""
        entries = self._reader.entries()
        return entries if self._entry is None else _with(entries, self._entry)

    def entry(self, node: NodeName) -> InventoryEntry | None:
        own = self._entry
        return own if own is not None and own.node == node else self._reader.entry(node)

    def nodes(self, names: Collection[str] | None = None) -> Iterator[NodeBrief]:
        """Yield the same nodes as `entries` without their facts."""
        with self.rows() as connection:
            yield from briefs(connection, names)

    def rows(
        self, own: EntryRows | None = None, *, exports: bool = False
    ) -> AbstractContextManager[Connection]:
        """Lend the rows of one moment."""
        if own is None and self._entry is not None:
            own = EntryRows.of(self._entry)
        return self._reader.rows(own, exports=exports)

    def check(self) -> None:
        """Raise `EnoughError` to stop."""
        if self._enough():
            raise EnoughError
        self._reader.check()


def _with(items: Iterator[InventoryEntry], own: InventoryEntry) -> Iterator[InventoryEntry]:
    """Yield entries sorted by name, with `own` in place of its node's entry."""
    is_yielded = False
    for item in items:
        if not is_yielded and item.node >= own.node:
            is_yielded = True
            yield own
        if item.node != own.node:
            yield item
    if not is_yielded:
        yield own


V = TypeVar("V")
JUNCTION = -1  # place of a vertex without one


class Graph(Value):
    """A directed graph: the place of each vertex, or `JUNCTION`, and where its edges lead."""

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

    Every edge of the graph has a junction at exactly one of its ends. The members are a strongly
    connected component with at least two places. The first vertex, not repeated, has a place.
    """
    inside = set(members)
    ends: dict[int, list[int]] = {}

    def following(vertex: int) -> Iterator[int]:
        return (other for other in graph.successors[vertex] if other in inside)

    for start in sorted(inside):
        if graph.places[start] == JUNCTION:
            continue
        for junction in following(start):
            if junction not in ends:
                ends[junction] = _two_places(graph, inside, junction)
            for end in ends[junction]:
                if graph.places[end] != graph.places[start]:
                    return [start, junction, *shortest_path(end, start, following)[:-1]]
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


def shortest_path(start: V, end: V, following: Callable[[V], Iterable[V]]) -> list[V]:
    """Return a shortest path between two vertices, both included; empty without one."""
    came_from = {start: start}
    waiting = deque([start])
    while waiting and end not in came_from:
        vertex = waiting.popleft()
        for other in following(vertex):
            if other not in came_from:
                came_from[other] = vertex
                waiting.append(other)
    if end not in came_from:
        return []
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


# Different questions answered in one call; each may read every entry.
MAX_QUESTIONS = 1000
MAX_SHOWN = 60
_CALL = re.compile(r"([a-z_]+)\((.*)\)\Z", re.DOTALL)
MAX_CYCLES = 50


class LinkReason(StrEnum):
    """The reason why a node runs when another one changes."""

    KICK = "kick"
    QUERY = "query"
    COLLECT = "collect"
    TRIGGER = "trigger"


# A node runs for these reasons if an answer changes.
ANSWERS = frozenset((LinkReason.QUERY, LinkReason.COLLECT))


class NodeLink(Value):
    """Nodes that make others run, not themselves; `text` is the kick or question as written."""

    by: LinkReason
    starts: frozenset[NodeName]
    ends: frozenset[NodeName]
    text: str = ""

    @property
    def written(self) -> str:
        """Return the kick or question in one line, a collector in Puppet's syntax."""
        if self.by is LinkReason.COLLECT:
            kind, condition = _call(self.text)[1]
            return one_line(collector_text(str(kind), condition))
        return one_line(self.text)

    @property
    def is_empty(self) -> bool:
        """Return whether it leads from no node to another one."""
        return not self.starts or not self.ends or (self.starts == self.ends and len(self.ends) < 2)


class Links(Value):
    """All links of an inventory, and its nodes.

    `lost` has kicks that match no node, with those that kick; `notes` errors of kicks and queries.
    """

    nodes: dict[NodeName, tuple[str, ...]]
    links: tuple[NodeLink, ...]
    lost: tuple[tuple[str, frozenset[NodeName]], ...]
    notes: tuple[str, ...]
    unanswered: int = 0


class _EntryTexts(Value):
    """The kicks and questions in the entries, each different text once."""

    nodes: dict[NodeName, tuple[str, ...]]
    questions: dict[tuple[LinkReason, str], set[NodeName]]
    steps: set[tuple[NodeName, NodeName]]


def links_of(reader: InventoryReader, enough: Callable[[], bool] = lambda: False) -> Links:
    """Return the links of an inventory; stop early if `enough`: questions may be slow."""
    texts = _read_texts(reader.entries())
    pairs, lost, notes = [], [], []
    unanswered = 0
    for looked, ((by, text), asking) in enumerate(sorted(texts.questions.items())):
        if looked == MAX_QUESTIONS or enough():
            unanswered = len(texts.questions) - looked
            break
        try:
            answer = _names(by, text, DerivedReader(reader, enough=enough))
        except EnoughError:
            unanswered = len(texts.questions) - looked
            break
        except InvalidInputError as error:
            shown = f"{by} {one_line(text)[:MAX_SHOWN]!r}"
            notes.append(f"{shown} of {shown_names(sorted(asking))} is not understood: {error}")
            continue
        there = answer & texts.nodes.keys()
        starts, ends = (asking, there) if by is LinkReason.KICK else (there, asking)
        link = NodeLink(by=by, starts=frozenset(starts), ends=frozenset(ends), text=text)
        if not link.is_empty:
            pairs.append(link)
        elif by is LinkReason.KICK and not answer:
            lost.append((text, frozenset(asking)))
    return Links(
        nodes=texts.nodes,
        links=(*pairs, *_triggers(texts, pairs)),
        lost=tuple(lost),
        notes=tuple(notes),
        unanswered=unanswered,
    )


def _read_texts(entries: Iterable[InventoryEntry]) -> _EntryTexts:
    nodes: dict[NodeName, tuple[str, ...]] = {}
    questions: dict[tuple[LinkReason, str], set[NodeName]] = {}
    steps: set[tuple[NodeName, NodeName]] = set()
    for entry in entries:
        nodes[entry.node] = entry.roles
        for text in entry.kicks:
            questions.setdefault((LinkReason.KICK, text), set()).add(entry.node)
        for query in entry.queries:
            by = LinkReason.COLLECT if query.text.startswith(f"{COLLECT}(") else LinkReason.QUERY
            questions.setdefault((by, query.text), set()).add(entry.node)
        for path in entry.paths:
            chain = (*path, entry.node)
            steps.update(pairwise(chain))
    return _EntryTexts(nodes=nodes, questions=questions, steps=steps)


def _triggers(texts: _EntryTexts, explained: list[NodeLink]) -> Iterator[NodeLink]:
    """Yield a link for each sender of triggers that no kick and no query explains."""
    of_start: dict[NodeName, list[NodeLink]] = {}
    for link in explained:
        for start in link.starts:
            of_start.setdefault(start, []).append(link)
    ends: dict[NodeName, set[NodeName]] = {}
    for start, end in texts.steps:
        known = start in texts.nodes and end in texts.nodes and start != end
        if known and not any(end in link.ends for link in of_start.get(start, ())):
            ends.setdefault(start, set()).add(end)
    for start, triggered in sorted(ends.items()):
        yield NodeLink(by=LinkReason.TRIGGER, starts=frozenset((start,)), ends=frozenset(triggered))


def _names(by: LinkReason, text: str, reader: InventoryReader) -> frozenset[NodeName]:
    question = FunctionCall.of("query_nodes", [text]) if by is LinkReason.KICK else _question(text)
    return frozenset(map(NodeName, question.answer(reader).names))


def _question(text: str) -> FunctionCall:
    """Return the query in the text of `FunctionCall.text` or `CollectorRecord.question`."""
    name, arguments = _call(text)
    if name != COLLECT:
        return FunctionCall.of(name, arguments)
    if len(arguments) != 2 or not isinstance(arguments[0], str):
        raise InvalidInputError("is not a collector")
    check_values(arguments)
    asked = as_query(arguments[0], Search.parse(arguments[1]))
    return FunctionCall.of("query_resources", [False, asked])


def _call(text: str) -> tuple[str, list[Json]]:
    """Return the function that a text calls, and its arguments."""
    call = _CALL.match(text)
    if call is None:
        raise InvalidInputError("is not a call of a function")
    try:
        arguments: list[Json] = loads(f"[{call[2]}]")
    except ValueError as error:
        raise InvalidInputError("its arguments are cut, or are not JSON") from error
    return call[1], arguments


# Role → the roles that it makes run, and the reasons.
_Steps = dict[str, dict[str, frozenset[LinkReason]]]


class Cycle(Value):
    """Roles that make each other run."""

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
        return {
            "path": list(self.path),
            "by": [[*sorted(map(str, step))] for step in self.by],
            "settles": self.settles,
        }


def cycles_of(links: Sequence[NodeLink], names: Mapping[NodeName, str]) -> tuple[Cycle, ...]:
    """Return the cycles of links, the shortest first."""
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
    cycles = []
    for start in sorted(steps):
        for end in sorted(steps[start]):
            way = shortest_path(end, start, lambda role: sorted(steps.get(role, ())))
            if way:
                cycles.append(_cycle(way, steps))
    return cycles


def _cycle(way: list[str], steps: _Steps) -> Cycle:
    """Return the cycle of a path whose end leads to its start, from the first role by name."""
    first = way.index(min(way))
    path = (*way[first:], *way[:first], way[first])
    return Cycle(path=path, by=tuple(steps[start][end] for start, end in pairwise(path)))
