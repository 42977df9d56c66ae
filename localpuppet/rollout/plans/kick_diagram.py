"""The diagram of which roles make which others run; cycles are red."""

from collections.abc import Sequence
from itertools import pairwise

from localpuppet.base.formats.text import one_line
from localpuppet.fleet.roles.links import LinkReason
from localpuppet.fleet.roles.relations import NOBODY, Relations, Role
from localpuppet.rollout.plans.diagram import (
    MARKED,
    Arrow,
    Box,
    Diagram,
    fold,
    join,
    keep_classes,
    make_diagram,
)

MAX_CYCLES = 12  # that are named below the diagram
LOST = "lost"  # the kind of a box that a kick finds no node for
_WORDS = {
    LinkReason.KICK: "kicks",
    LinkReason.QUERY: "is in a query of",
    LinkReason.COLLECT: "exports to",
    LinkReason.TRIGGER: "triggered",
}


def kick_diagram(relations: Relations) -> Diagram:
    """Return the diagram of some relations.

    Nodes without a role become one box if the same roles make them run, and they make the same
    roles run.
    """
    roles = relations.roles
    vertex = {role.name: number for number, role in enumerate(roles)}
    steps = {step for cycle in relations.cycles for step in pairwise(cycle.path)}
    arrows = [
        Arrow(
            starts=frozenset((vertex[edge.start],)),
            ends=frozenset((vertex[edge.end],)),
            kinds=(str(edge.by), *[MARKED] * ((edge.start, edge.end) in steps)),
            label=str(edge.by),
            details=(f"{edge.start} {_WORDS[edge.by]} {edge.end}", *edge.texts),
        )
        for edge in relations.edges
    ]
    every = fold(["" if _is_node(role) else role.name for role in roles], arrows)
    looping = {vertex[name] for step in steps for name in step}
    classes = keep_classes(every, lambda members: not looping.isdisjoint(members))
    boxes = [
        _box([roles[number] for number in members], is_marked=not looping.isdisjoint(members))
        for members in classes
    ]
    named = [len(role.nodes) for role in roles if role.nodes]
    return make_diagram(
        f"Which roles make which others run: {len(named)} roles, {sum(named)} nodes",
        boxes,
        join(classes, arrows, lambda start, end, arrow: True),
        left_out=len(every) - len(classes),
        notes=_notes(relations),
    )


def _is_node(role: Role) -> bool:
    """Return whether a role is a node that has no role."""
    return [*map(str, role.nodes)] == [role.name]


def _box(roles: Sequence[Role], *, is_marked: bool) -> Box:
    """Return the box of a role, or of some nodes without a role."""
    name, nodes = roles[0].name, tuple(node for role in roles for node in role.nodes)
    if len(roles) > 1:
        title = f"{len(nodes)} nodes"
    elif len(nodes) > 1:
        title = f"{name} ({len(nodes)} nodes)"
    else:
        title = name.removeprefix(NOBODY)
    lines = ("no role",) if _is_node(roles[0]) else () if nodes else ("no node matches",)
    kinds = (*[LOST] * (not nodes), *[MARKED] * is_marked)
    return Box(title=title, nodes=nodes, lines=lines, kinds=kinds)


def _notes(relations: Relations) -> list[tuple[str, str]]:
    cycles = relations.cycles
    notes = [(MARKED, f"Cycle: {one_line(cycle.shown)}") for cycle in cycles[:MAX_CYCLES]]
    if len(cycles) > MAX_CYCLES:
        notes.append((MARKED, f"{len(cycles) - MAX_CYCLES} more cycles"))
    if not relations.edges:
        notes.append(("", "No node kicks, asks about, collects from or triggers another node."))
    if relations.unanswered:
        notes.append(("", f"{relations.unanswered} kicks and queries took too long to evaluate"))
    return notes
