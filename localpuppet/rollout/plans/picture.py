"""What a picture of a plan shows: boxes for runs, edges for what they wait for.

Owns: what is drawn and what is left out, so that a picture stays one that people can read. Refuses
to know: shapes and colours (`svg`, `dot`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.plans.plan import Plan, Run

MOST_BOXES = 150
MOST_GROUPS = 30
MOST_ROWS = 40  # in a group
MOST_EDGES = 400
MOST_LINES = 4  # of components in a box
MOST_NAMES = 3  # of capabilities at an edge
MOST_WAITS = 200_000  # pairs of runs and capabilities that are looked at

Critical = Mapping[tuple[int, NodeName], int]  # runs of the longest chain: the place in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A run.

    Attributes:
        group: Its group, from 1.
        title: The node, and which of its runs it is where there are several.
        lines: What it is for.
        again: Whether the node runs more than once.
        critical: Whether it is in the longest chain.
    """

    group: int
    title: str
    lines: tuple[str, ...]
    again: bool
    critical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A wait of one run for another.

    Attributes:
        start: The index of the box that is waited for.
        end: The index of the box that waits.
        label: The capabilities; empty where it is the next run of the same node.
        critical: Whether it is in the longest chain.
    """

    start: int
    end: int
    label: str
    critical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A plan to be drawn.

    Attributes:
        title: What it shows.
        heads: Of each group that is drawn its name, and how many of its runs are drawn.
        boxes: By group; in the order in which they stand in it.
        edges: Those between boxes that are drawn.
        notes: What is left out.
    """

    title: str
    heads: tuple[str, ...]
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    notes: tuple[str, ...]


def picture(plan: Plan) -> Picture:
    """Return the picture of a plan."""
    runs = _drawn(plan)
    critical = {(link.group, link.node): place for place, link in enumerate(plan.chain)}
    pairs = _pairs(runs, first={link.capability for link in plan.chain})
    kept = sorted(pairs, key=lambda pair: not _follows(runs, pair, critical))[:MOST_EDGES]
    order = _untangled(runs, kept)
    place = {old: new for new, old in enumerate(order)}
    edges = [
        Edge(
            start=place[pair[0]],
            end=place[pair[1]],
            label=_label(pairs[pair]),
            critical=_follows(runs, pair, critical),
        )
        for pair in kept
    ]
    counts = Counter(run.group for run in runs)
    heads = [
        f"Group {number}"
        + (f": {counts[number]} of {len(group)}" if counts[number] < len(group) else "")
        for number, group in enumerate(plan.groups[:MOST_GROUPS], 1)
    ]
    notes = []
    if len(plan.runs) > len(runs):
        notes.append(f"{len(plan.runs) - len(runs)} more runs are not drawn")
    if len(pairs) > len(kept):
        notes.append(f"{len(pairs) - len(kept)} more edges are not drawn")
    return Picture(
        title=f"{plan.environment}: {len(plan.nodes)} nodes, {len(plan.groups)} groups",
        heads=tuple(heads),
        boxes=tuple(_box(runs[old], critical) for old in order),
        edges=tuple(sorted(edges, key=lambda edge: (edge.start, edge.end))),
        notes=tuple(notes),
    )


def _drawn(plan: Plan) -> list[Run]:
    """Return the runs that are drawn: of each group the one of the longest chain, and the first."""
    groups = plan.groups[:MOST_GROUPS]
    few = sum(map(len, groups)) <= MOST_BOXES
    each = MOST_ROWS if few else min(MOST_ROWS, MOST_BOXES // len(groups))
    found = []
    for group, link in zip(groups, plan.chain, strict=False):
        first = sorted(group, key=lambda run: run.node != link.node)[:each]
        found += sorted(first, key=lambda run: run.node)
    return found


def _pairs(runs: list[Run], *, first: set[str | None]) -> dict[tuple[int, int], list[str]]:
    """Return which runs wait for which, and for what; nothing where the node is the same."""
    found: dict[tuple[int, int], list[str]] = {}
    for start, end, name in islice(_waits(runs, first), MOST_WAITS):
        found.setdefault((start, end), []).append(name)
    last: dict[str, int] = {}
    for index, run in enumerate(runs):
        if run.node in last:
            found[last[run.node], index] = []
        last[run.node] = index
    return found


def _waits(runs: list[Run], first: set[str | None]) -> Iterator[tuple[int, int, str]]:
    """Yield which run waits for which for what; capabilities of `first` before the others."""
    produced: dict[str, list[int]] = {}
    consumed: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        for name in {name for one in run.components for name in one.produces}:
            produced.setdefault(name, []).append(index)
        for name in {name for one in run.components for name in one.consumes}:
            consumed.setdefault(name, []).append(index)
    for name in sorted(
        produced.keys() & consumed.keys(), key=lambda name: (name not in first, name)
    ):
        for start in produced[name]:
            for end in consumed[name]:
                if runs[start].node != runs[end].node:
                    yield start, end, name


def _follows(runs: list[Run], pair: tuple[int, int], critical: Critical) -> bool:
    start, end = (critical.get((runs[one].group, runs[one].node)) for one in pair)
    return start is not None and end is not None and start + 1 == end


def _untangled(runs: list[Run], pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the order of the boxes: in a group, each near the middle of what it waits for."""
    before: dict[int, list[int]] = {}
    for start, end in pairs:
        before.setdefault(end, []).append(start)
    height: dict[int, float] = {}
    order: list[int] = []
    by_group: dict[int, list[int]] = {}
    for index, run in enumerate(runs):
        by_group.setdefault(run.group, []).append(index)
    for _, members in sorted(by_group.items()):
        middle = {
            index: sum(height[one] for one in before[index]) / len(before[index])
            if index in before
            else 1.0
            for index in members
        }
        members.sort(key=lambda index: (middle[index], runs[index].node))
        for row, index in enumerate(members):
            height[index] = (row + 0.5) / len(members)
        order += members
    return order


def _box(run: Run, critical: Critical) -> Box:
    names = run.by_application()
    lines = [f"{application}: {', '.join(names[application][:3])}" for application in names]
    lines = [
        line + (f" +{len(names[application]) - 3}" if len(names[application]) > 3 else "")
        for line, application in zip(lines, names, strict=True)
    ]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"{len(lines) - MOST_LINES + 1} more applications"]
    which = f" (run {run.number} of {run.total})" if run.total > 1 else ""
    return Box(
        group=run.group,
        title=f"{run.node}{which}",
        lines=tuple(lines),
        again=run.total > 1,
        critical=(run.group, run.node) in critical,
    )


def _label(names: list[str]) -> str:
    left = len(names) - MOST_NAMES
    return ", ".join([*names[:MOST_NAMES], *([f"{left} more"] if left > 0 else [])])
