"""The plan of a site: the node runs in groups that wait for each other.

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

- A component waits for all components that produce what it consumes. Components on the same node
  do not wait: Puppet orders its own catalog. A circle within one node is left to Puppet.
- A group has the runs that may be parallel. A node runs once, or more often if components of
  several nodes depend on each other in both directions, see `levels`. Each run is complete.
- A capability that no selected application produces is rejected, and so is a circle through
  several nodes.
- Selecting nodes rejects nothing: what other nodes produce counts as done, and the order through
  them stays.
- The order of the document does not matter.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, did_you_mean
from localpuppet.base.value import Value
from localpuppet.fleet.edges.links import (
    JUNCTION,
    Graph,
    loop_through,
    merge,
    predecessors,
    several_places,
    strong_components,
)
from localpuppet.rollout.site import EnvironmentSite, SiteComponent, to_json

NEVER = 1 << 60


class LoopError(Exception):
    """The graph has a loop through several places."""

    def __init__(self, loops: int, members: list[int]) -> None:
        super().__init__(f"{loops} loops")
        self.loops = loops
        self.members = members


class LevelSchedule(Value):
    times: Sequence[int]  # the turn of each vertex, from 0; `JUNCTION` for junctions
    last: int  # the last turn; -1 if no vertex has a place
    # A longest path. Each element has the vertices of one place in one turn, and waits for the one
    # before it.
    chain: Sequence[Sequence[int]]


def turns(graph: Graph) -> LevelSchedule:
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


SHOWN = 12  # steps of a circle in a message


class PlanSelection(Value):
    """The part of a site that a plan covers; no instances or nodes mean all."""

    instances: tuple[str, ...] = ()
    nodes: tuple[NodeName, ...] = ()


class Run(Value):
    """One run of a node: the first of two, for instance.

    Its components are done after this run; others can rely on them.
    """

    node: NodeName
    group: int
    number: int
    total: int
    components: tuple[SiteComponent, ...]

    def by_application(self) -> dict[str, list[str]]:
        """Return the names of the components by application, both sorted."""
        components: dict[str, list[str]] = {}
        for component in self.components:
            components.setdefault(component.application, []).append(component.name)
        return components

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "number": self.number,
            "total": self.total,
            "components": [
                {
                    "application": component.application,
                    "name": component.name,
                    "produces": list(component.produces),
                    "consumes": list(component.consumes),
                    "checks": [to_json(check) for check in component.checks],
                }
                for component in self.components
            ],
        }


class ChainRun(Value):
    group: int
    node: NodeName
    # What it waits for from the run before. `None` for the first run, and if nodes that are not
    # selected are between the two.
    capability: str | None

    def to_dict(self) -> dict[str, Any]:
        return {"group": self.group, "node": self.node, "capability": self.capability}


class Plan(Value):
    """Ordered groups of runs."""

    environment: str
    applications: tuple[str, ...]
    groups: tuple[tuple[Run, ...], ...]  # the runs of each group, sorted by node
    # The longest chain of runs that wait for each other, one run per group.
    chain: tuple[ChainRun, ...]
    # Capabilities that only nodes outside the selection produce, sorted.
    external_capabilities: tuple[str, ...]

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """The nodes that run, sorted."""
        return tuple(sorted({run.node for group in self.groups for run in group}))

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs in a possible sequential order."""
        return tuple(run for group in self.groups for run in group)

    def repeated(self) -> dict[NodeName, list[int]]:
        """Return node → its groups, for nodes that run more than once."""
        numbers: dict[NodeName, list[int]] = {}
        for run in self.runs:
            if run.total > 1:
                numbers.setdefault(run.node, []).append(run.group)
        return dict(sorted(numbers.items()))

    def summary(self) -> dict[str, Any]:
        """Return the JSON form without the groups; see base/share/plan.schema.json."""
        return {
            "schema": 1,
            "environment": self.environment,
            "applications": list(self.applications),
            "nodes": len(self.nodes),
            "runs": len(self.runs),
            "repeated": self.repeated(),
            "chain": [link.to_dict() for link in self.chain],
            "external_capabilities": list(self.external_capabilities),
        }


def make_plan(site: EnvironmentSite, selection: PlanSelection, *, where: str) -> Plan:
    """Return the plan of a part of a site.

    Raises:
        InvalidInputError: The selection has an unknown name or no node; a capability has no
            producer or one outside the selected applications; or there is a circle.
    """
    applications = _applications(site, selection, where)
    wanted = frozenset(applications)
    components = [component for component in site.components if component.application in wanted]
    _refuse_missing(site, components, where)
    nodes = _nodes(site, components, selection, where)
    whole = _Vertices(components, nodes=None)
    schedule = _turns(whole, where)
    vertices = whole
    if selection.nodes:
        vertices = _Vertices(components, nodes=nodes)
        schedule = turns(vertices.graph)
    return Plan(
        environment=site.environment,
        applications=applications,
        groups=_groups(vertices, schedule),
        chain=_chain(vertices, schedule),
        external_capabilities=vertices.external_capabilities(),
    )


def _applications(site: EnvironmentSite, selection: PlanSelection, where: str) -> tuple[str, ...]:
    known = frozenset(site.applications)
    for name in selection.instances:
        if name not in known:
            raise InvalidInputError(
                f"unknown application instance {name[:80]!r}",
                where=where,
                hint=_known(name, site.applications),
            )
    return tuple(sorted(set(selection.instances))) or site.applications


def _nodes(
    site: EnvironmentSite, components: Sequence[SiteComponent], selection: PlanSelection, where: str
) -> frozenset[NodeName]:
    known = frozenset(component.node for component in components)
    for node in selection.nodes:
        if node in known:
            continue
        if any(component.node == node for component in site.components):
            raise InvalidInputError(
                f"node {node} has no component of the selected applications", where=where
            )
        raise InvalidInputError(
            f"unknown node {node!r}", where=where, hint=_known(node, sorted(known))
        )
    if not known and selection.instances:
        raise InvalidInputError("the selection matches no node", where=where)
    return frozenset(selection.nodes) or known


def _known(word: str, names: Sequence[str]) -> str:
    return did_you_mean(word, list(names)) if len(names) <= 50 else f"{len(names)} others exist"


def _refuse_missing(site: EnvironmentSite, components: Sequence[SiteComponent], where: str) -> None:
    """Reject a capability without a producer, or with one that is not selected."""
    selected = {component.application for component in components}
    produced = set[str]().union(*(component.produces for component in components))
    elsewhere = {
        name: component
        for component in reversed(site.components)
        if component.application not in selected
        for name in component.produces
    }
    consumed = chain.from_iterable(component.consumes for component in components)
    if not elsewhere and produced.issuperset(consumed):
        return
    missing = [
        (component, name)
        for component in components
        for name in component.consumes
        if name in elsewhere or name not in produced
    ]
    if not missing:
        return
    consumer, name = missing[0]
    more = f" (and {len(missing) - 1} more like this)" if len(missing) > 1 else ""
    other = elsewhere.get(name)
    if other is None:
        raise InvalidInputError(
            f"nothing produces {name}, which {consumer} consumes{more}",
            where=where,
            hint="add its producer, or remove it from 'consumes'",
        )
    raise InvalidInputError(
        f"{name}, which {consumer} consumes, is produced by {other}, which is not selected{more}",
        where=where,
        hint=f"add --instance '{other.application}'",
    )


class _Vertices:
    """The components and capabilities of a plan as a graph; a place is a node's number.

    Components are sorted by node. Only `nodes` have a place.
    """

    def __init__(
        self, components: Sequence[SiteComponent], *, nodes: frozenset[NodeName] | None
    ) -> None:
        self.components = components
        self._nodes = nodes
        self.names = list(dict.fromkeys(name for item in components for name in item.produces))
        first = len(components)
        vertex = {name: first + index for index, name in enumerate(self.names)}
        places: list[int] = []
        successors: list[list[int]] = []
        place, last = JUNCTION, None
        consumers: list[list[int]] = [[] for _ in self.names]
        for index, component in enumerate(components):
            if component.node != last and (nodes is None or component.node in nodes):
                place += 1
                last = component.node
            places.append(place if component.node == last else JUNCTION)
            successors.append([vertex[name] for name in component.produces])
            for name in component.consumes:
                consumers[vertex[name] - first].append(index)
        self.graph = Graph(
            places=[*places, *(JUNCTION for _ in self.names)], successors=[*successors, *consumers]
        )

    def external_capabilities(self) -> tuple[str, ...]:
        """Return the capabilities that are consumed, and produced only on nodes without a place."""
        nodes = self._nodes
        if nodes is None:
            return ()
        here = [component for component in self.components if component.node in nodes]
        produced = {name for component in here for name in component.produces}
        return tuple(sorted({name for component in here for name in component.consumes} - produced))


def _turns(vertices: _Vertices, where: str) -> LevelSchedule:
    try:
        return turns(vertices.graph)
    except LoopError as error:
        steps = loop_through(vertices.graph, error.members)
        raise InvalidInputError(
            f"the order has a cycle: {_named(vertices, steps)}",
            where=where,
            hint="remove one of these from 'consumes'"
            + (f"; {error.loops - 1} more cycles" if error.loops > 1 else ""),
        ) from error


def _named(vertices: _Vertices, steps: Sequence[int]) -> str:
    """Return a circle by its names: `A of X on n -> Sql[a] -> B of Y on m -> Web[b] -> A of …`."""
    names = [
        str(vertices.components[step])
        if step < len(vertices.components)
        else vertices.names[step - len(vertices.components)]
        for step in (*steps, steps[0])
    ]
    if len(names) > SHOWN:
        left = len(names) - SHOWN
        names = [*names[: SHOWN // 2], f"… {left} more …", *names[-SHOWN // 2 :]]
    return " -> ".join(names)


def _groups(vertices: _Vertices, schedule: LevelSchedule) -> tuple[tuple[Run, ...], ...]:
    settled: dict[NodeName, dict[int, list[SiteComponent]]] = {}
    for index, component in enumerate(vertices.components):
        if schedule.times[index] != JUNCTION:
            settled.setdefault(component.node, {}).setdefault(schedule.times[index], []).append(
                component
            )
    groups: list[list[Run]] = [[] for _ in range(schedule.last + 1)]
    for node, by_time in settled.items():
        for number, (time, components) in enumerate(sorted(by_time.items()), 1):
            groups[time].append(
                Run(
                    node=node,
                    group=time + 1,
                    number=number,
                    total=len(by_time),
                    components=tuple(components),
                )
            )
    return tuple(tuple(group) for group in groups)


def _chain(vertices: _Vertices, schedule: LevelSchedule) -> tuple[ChainRun, ...]:
    links: list[ChainRun] = []
    before: Iterable[SiteComponent] = ()
    for indices in schedule.chain:
        components = [vertices.components[index] for index in indices]
        group = schedule.times[indices[0]] + 1
        produced = {name for component in before for name in component.produces}
        common = sorted(
            {name for component in components for name in component.consumes} & produced
        )
        if not links or links[-1].group != group:
            capability = common[0] if common else None
            links.append(ChainRun(group=group, node=components[0].node, capability=capability))
        before = components
    return tuple(links)
