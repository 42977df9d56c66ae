"""The diagram of a plan: a box for each run, an edge for each dependency.

Runs of a group are equal, and share a box, if they have the same applications and the same runs
before and after them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from localpuppet.base.formats.names import NodeName
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
from localpuppet.rollout.plans.plan import Plan, Run

MAX_APPLICATIONS = 4  # that a box names
MAX_COMPONENTS = 3  # of an application
AGAIN = "again"


def plan_diagram(plan: Plan) -> Diagram:
    """Return the diagram of a plan."""
    runs = plan.runs
    arrows = [*_repeats(runs), *_waits(runs)]
    every = fold([(run.group, run.total, *run.by_application()) for run in runs], arrows)
    links = {(link.group, link.node) for link in plan.chain if len(plan.chain) > 1}
    chain = {vertex for vertex, run in enumerate(runs) if (run.group, run.node) in links}
    classes = keep_classes(every, lambda members: not chain.isdisjoint(members))
    boxes = [
        _box([runs[vertex] for vertex in members], is_marked=not chain.isdisjoint(members))
        for members in classes
    ]

    def is_drawn(start: int, end: int, arrow: Arrow) -> bool:
        again = arrow.kinds == (AGAIN,)
        return boxes[start].rank < boxes[end].rank and (
            again or boxes[start].nodes != boxes[end].nodes
        )

    steps = set(pairwise(number for number, box in enumerate(boxes) if MARKED in box.kinds))
    edges = [
        replace(edge, kinds=(*edge.kinds, MARKED)) if (edge.start, edge.end) in steps else edge
        for edge in join(classes, arrows, is_drawn)
    ]
    counts = [(len(plan.nodes), "node"), (len(plan.groups), "group")]
    words = [f"{number} {noun}{'s' * (number != 1)}" for number, noun in counts]
    return make_diagram(
        f"{plan.environment}: {', '.join(words)}",
        boxes,
        edges,
        left_out=len(every) - len(classes),
        heads=[f"Group {number}" for number in range(1, len(plan.groups) + 1)],
        notes=[(MARKED, "Red: the longest chain of runs")] if chain else (),
    )


def _repeats(runs: Sequence[Run]) -> Iterator[Arrow]:
    """Yield an arrow from each run of a node to its next one."""
    last: dict[NodeName, int] = {}
    for vertex, run in enumerate(runs):
        if run.node in last:
            starts, ends = frozenset((last[run.node],)), frozenset((vertex,))
            yield Arrow(starts=starts, ends=ends, kinds=(AGAIN,), label="runs again")
        last[run.node] = vertex


def _waits(runs: Sequence[Run]) -> Iterator[Arrow]:
    """Yield an arrow for each capability that a run waits for."""
    produced: dict[str, set[int]] = {}
    consumed: dict[str, set[int]] = {}
    for vertex, run in enumerate(runs):
        for component in run.components:
            for name in component.produces:
                produced.setdefault(name, set()).add(vertex)
            for name in component.consumes:
                consumed.setdefault(name, set()).add(vertex)
    for name, producers in produced.items():
        starts, ends = frozenset(producers), frozenset(consumed.get(name, ()))
        if ends and (starts != ends or len(ends) > 1):
            yield Arrow(starts=starts, ends=ends, label=name, details=(name,))


def _box(runs: Sequence[Run], *, is_marked: bool) -> Box:
    """Return the box of some equal runs."""
    first = runs[0]
    names: dict[str, dict[str, None]] = {}
    for run in runs:
        for application, components in run.by_application().items():
            names.setdefault(application, {}).update(dict.fromkeys(components))
    lines = [_application(application, [*parts]) for application, parts in names.items()]
    if len(lines) > MAX_APPLICATIONS:
        kept = MAX_APPLICATIONS - 1
        lines = [*lines[:kept], f"{len(lines) - kept} more applications"]
    which = f" (run {first.number} of {first.total})" if first.total > 1 else ""
    return Box(
        title=f"{len(runs)} nodes" if len(runs) > 1 else f"{first.node}{which}",
        nodes=tuple(sorted(run.node for run in runs)),
        lines=tuple(lines),
        rank=first.group,
        kinds=(*[AGAIN] * (first.total > 1), *[MARKED] * is_marked),
    )


def _application(name: str, components: Sequence[str]) -> str:
    left = len(components) - MAX_COMPONENTS
    more = f" and {left} more" if left > 0 else ""
    return f"{name}: {', '.join(components[:MAX_COMPONENTS])}{more}"
