"""Derive a site from an inventory: from declared components and from relations between nodes.

- Components that catalogs declare are in the site unchanged.
- A node that queries others, collects from them or is kicked by them runs after them. Each such
  relation is a separate capability, between components named `catalog` of applications named
  after roles: `role web`.
- Relations in both directions or in a circle give no order: members of a cluster that query each
  other, roles that query each other. A note names them. Declared components always keep their
  order, so a relation alone never makes a plan impossible.
- Every node of the inventory is in the site.

Nodes with the same relations and capabilities form one *class*; there are few classes, even for
many nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.fleet.edges.cycles import role_of
from localpuppet.fleet.edges.links import (
    JUNCTION,
    Graph,
    LinkReason,
    Links,
    NodeLink,
    strong_components,
)
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.entry import NodeComponent as Declared
from localpuppet.rollout.site import ENVIRONMENT, MAX_COMPONENTS, EnvironmentSite, SiteComponent

# Pairs of classes from relations; a relation that exceeds this is left out, with a note.
MAX_PAIRS = 200_000
MAX_TEXT = 160  # characters of a kick or query in the name of a capability
MAX_ROLE = 200
MAX_NOTES = 5
CATALOG = "catalog"
_WORDS = {
    LinkReason.KICK: "kick of",
    LinkReason.QUERY: "answer to",
    LinkReason.COLLECT: "answer to",
}

Pair = tuple[int, int]


class DerivedPlan(Value):
    """The site of an inventory, and notes: roles without an order, problems of relations."""

    site: EnvironmentSite
    roles: Mapping[NodeName, tuple[str, ...]]
    notes: tuple[str, ...]


class _Classes(Value):
    """Classes of nodes with the same relations and capabilities."""

    of: Mapping[NodeName, int]
    members: Sequence[Sequence[NodeName]]
    produces: Sequence[frozenset[str]]
    consumes: Sequence[frozenset[str]]

    def those(self, nodes: Iterable[NodeName]) -> frozenset[int]:
        """Return the classes of nodes; nodes without an entry have none."""
        return frozenset(self.of[node] for node in nodes if node in self.of)


def derive(
    entries: Iterable[InventoryEntry], links: Links, *, most: int = MAX_PAIRS
) -> DerivedPlan:
    """Return the site of an inventory, from the relations between the same nodes.

    At most `most` pairs of classes come from relations.
    """
    declared: dict[NodeName, tuple[Declared, ...]] = {}
    environments: set[str] = set()
    for entry in entries:
        declared[entry.node] = entry.components
        environments.add(entry.environment or ENVIRONMENT)
    relations = [link for link in links.links if link.by in _WORDS]
    classes = _classes(declared, relations)
    asked, more = _asked(relations, classes, most)
    kept = _kept(asked, classes)
    notes = [*links.notes, *more, *_undecided(asked - kept, classes, links.nodes)]
    components = _Components(declared, links.nodes)
    for link, name in zip(relations, _names(relations), strict=True):
        components.relate(link, name, classes, kept)
    environment = environments.pop() if len(environments) == 1 else ENVIRONMENT
    return DerivedPlan(site=components.site(environment), roles=links.nodes, notes=tuple(notes))


def _classes(
    declared: Mapping[NodeName, Sequence[Declared]], relations: Sequence[NodeLink]
) -> _Classes:
    starts: dict[NodeName, list[int]] = {}
    ends: dict[NodeName, list[int]] = {}
    for number, link in enumerate(relations):
        for node in link.starts:
            starts.setdefault(node, []).append(number)
        for node in link.ends:
            ends.setdefault(node, []).append(number)
    numbers: dict[object, int] = {}
    of: dict[NodeName, int] = {}
    members: list[list[NodeName]] = []
    produces, consumes = [], []
    for node, parts in sorted(declared.items()):
        gives = frozenset(name for part in parts for name in part.produces)
        takes = frozenset(name for part in parts for name in part.consumes)
        sign = (tuple(starts.get(node, ())), tuple(ends.get(node, ())), gives, takes)
        of[node] = numbers.setdefault(sign, len(numbers))
        if of[node] == len(members):
            members.append([])
            produces.append(gives)
            consumes.append(takes)
        members[of[node]].append(node)
    return _Classes(of=of, members=members, produces=produces, consumes=consumes)


def _asked(
    relations: Sequence[NodeLink], classes: _Classes, most: int
) -> tuple[set[Pair], list[str]]:
    """Return the pairs of classes that relations order, and notes on relations left out."""
    pairs: set[Pair] = set()
    notes = []
    for link in relations:
        starts, ends = classes.those(link.starts), classes.those(link.ends)
        if len(pairs) + len(starts) * len(ends) > most:
            notes.append(f"{_text(link)} is between too many nodes to order them")
            continue
        pairs |= {(start, end) for end in ends for start in _before(starts, ends, end)}
    return pairs, notes


def _before(starts: frozenset[int], ends: frozenset[int], end: int) -> frozenset[int]:
    """Return the classes that run before `end`; members of the same cluster do not."""
    return starts - ends if end in starts else starts


def _kept(asked: set[Pair], classes: _Classes) -> set[Pair]:
    """Return the pairs that give an order: without opposite pairs, and outside of circles."""
    one_way = {(start, end) for start, end in asked if (end, start) not in asked}
    successors: list[list[int]] = [[] for _ in classes.members]
    junctions: dict[str, int] = {}
    for number, names in enumerate(classes.produces):
        for name in names:
            junction = junctions.setdefault(name, len(successors))
            if junction == len(successors):
                successors.append([])
            successors[number].append(junction)
    for number, names in enumerate(classes.consumes):
        for name in names:
            if name in junctions:
                successors[junctions[name]].append(number)
    for start, end in sorted(one_way):
        successors[start].append(end)
    places = [JUNCTION] * len(successors)
    number_of, _ = strong_components(Graph(places=places, successors=successors))
    return {(start, end) for start, end in one_way if number_of[start] != number_of[end]}


def _undecided(
    lost: set[Pair], classes: _Classes, roles: Mapping[NodeName, tuple[str, ...]]
) -> Iterator[str]:
    """Yield a line for each two roles between which relations give no order."""
    names = set()
    for start, end in lost:
        first, second = classes.members[start][0], classes.members[end][0]
        names.add(tuple(sorted(role_of(side, roles.get(side, ())) for side in (first, second))))
    for role, other in sorted(names)[:MAX_NOTES]:
        yield one_line(
            f"no order between {role[:MAX_ROLE]} and {other[:MAX_ROLE]}: each waits for the other"
        )
    if len(names) > MAX_NOTES:
        yield f"and between {len(names) - MAX_NOTES} more"


@dataclass(slots=True, eq=False)
class _Components:
    """Collects the components of a site."""

    declared: Mapping[NodeName, Sequence[Declared]]
    roles: Mapping[NodeName, tuple[str, ...]]
    _produces: dict[NodeName, list[str]] = field(default_factory=dict, init=False)
    _consumes: dict[NodeName, list[str]] = field(default_factory=dict, init=False)

    def relate(self, link: NodeLink, name: str, classes: _Classes, kept: set[Pair]) -> None:
        """Add a relation under a unique name, as far as it gives an order."""
        starts, ends = classes.those(link.starts), classes.those(link.ends)
        waiting: dict[frozenset[int], list[int]] = {}
        for end in ends:
            before = frozenset(
                start for start in _before(starts, ends, end) if (start, end) in kept
            )
            if before:
                waiting.setdefault(before, []).append(end)
        several = len(waiting) > 1
        for part, (before, after) in enumerate(
            sorted(waiting.items(), key=lambda pair: sorted(pair[1])), 1
        ):
            capability = f"{name} ({part})" if several else name
            for wanted, components in ((before, self._produces), (after, self._consumes)):
                for component in wanted:
                    for node in classes.members[component]:
                        components.setdefault(node, []).append(capability)

    def site(self, environment: str) -> EnvironmentSite:
        components = [
            SiteComponent(
                application=part.application,
                name=part.name,
                node=node,
                produces=part.produces,
                consumes=part.consumes,
            )
            for node, parts in self.declared.items()
            for part in parts
        ]
        for node, parts in self.declared.items():
            produces, consumes = self._produces.get(node, []), self._consumes.get(node, [])
            if produces or consumes or not parts:
                components.append(
                    SiteComponent(
                        application=self._application(node),
                        name=CATALOG,
                        node=node,
                        produces=tuple(sorted(produces)),
                        consumes=tuple(sorted(consumes)),
                        declared=False,
                    )
                )
        if len(components) > MAX_COMPONENTS:
            raise InvalidInputError(
                f"has too many components: at most {MAX_COMPONENTS} are allowed", where="inventory"
            )
        components.sort(
            key=lambda component: (component.node, component.application, component.name)
        )
        return EnvironmentSite(
            environment=environment,
            applications=tuple(sorted({component.application for component in components})),
            components=tuple(components),
        )

    def _application(self, node: NodeName) -> str:
        roles = ",".join(self.roles.get(node, ()))
        return one_line(f"role {roles[:MAX_ROLE]}").strip() if roles else "no role"


def _names(relations: Sequence[NodeLink]) -> Iterator[str]:
    """Yield a name for each relation: its text, numbered if another has the same."""
    seen: Counter[str] = Counter()
    for link in relations:
        text = _text(link)
        seen[text] += 1
        yield text if seen[text] == 1 else f"{text} [{seen[text]}]"


def _text(link: NodeLink) -> str:
    return f"{_WORDS[link.by]} {link.written[:MAX_TEXT]}".strip()
