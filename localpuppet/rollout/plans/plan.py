"""The plan of a site: the node runs in groups that wait for each other.

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
from localpuppet.fleet.roles.links import JUNCTION, Graph, loop_through
from localpuppet.rollout.plans.levels import LevelSchedule, LoopError, turns
from localpuppet.rollout.plans.site import EnvironmentSite, SiteComponent, to_json

SHOWN = 12  # steps of a circle in a message


class PlanSelection(Value):
    """The part of a site that a plan covers.

    Attributes:
        instances: Application instances; empty for all.
        nodes: Nodes; empty for all.
    """

    instances: tuple[str, ...] = ()
    nodes: tuple[NodeName, ...] = ()


class Run(Value):
    """One run of a node.

    Attributes:
        number: Which of the node's runs it is, from 1.
        total: How often the node runs.
        components: The node's components that are done after this run; others can rely on them.
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
        """Return the JSON form."""
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
    """A run in the longest chain.

    Attributes:
        capability: What it waits for from the run before. `None` for the first run, and if nodes
            that are not selected are between the two.
    """

    group: int
    node: NodeName
    capability: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"group": self.group, "node": self.node, "capability": self.capability}


class Plan(Value):
    """Ordered groups of runs.

    Attributes:
        applications: The selected instances, sorted.
        groups: The runs of each group, sorted by node.
        chain: The longest chain of runs that wait for each other, one run per group.
        external_capabilities: Capabilities that only nodes outside the selection produce, sorted.
    """

    environment: str
    applications: tuple[str, ...]
    groups: tuple[tuple[Run, ...], ...]
    chain: tuple[ChainRun, ...]
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
    """Return the plan of a site.

    Args:
        site: The site.
        selection: The part of the site that the plan covers.
        where: The site's name, for messages.

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
    """Return the selected nodes."""
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

    Args:
        components: The components, sorted by node.
        nodes: The nodes with a place; `None` for all.
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
