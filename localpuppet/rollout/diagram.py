"""Diagrams of plans and kicks: boxes and edges, and their DOT text for Graphviz.

- Equal vertices share a box: they have equal keys, and the same vertices before and after them.
- The size of a diagram is limited.
- DOT text for people (`dot_text`) has names, each one escaped. DOT text for the layout
  (`dot_sizes`) has only sizes and numbers: no text of another node reaches the program `dot`.

Runs of a group are equal, and share a box, if they have the same applications and the same runs
before and after them.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice, pairwise
from unicodedata import east_asian_width

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line, shortened
from localpuppet.base.value import Value
from localpuppet.fleet.edges.cycles import NOBODY, Relations, Role
from localpuppet.fleet.edges.links import LinkReason
from localpuppet.rollout.plan import Plan, Run

# `dot` needs 1 s for random edges up to these limits, and minutes for twice as many.
MAX_BOXES = 60
MAX_EDGES = 160
MAX_LABELLED = 60  # edges of a diagram whose edges have labels
MAX_PAIRS = 200_000  # of vertices that are looked at
MAX_LINE = 44  # characters of a line in a box
MAX_LABEL = 26  # characters of a label of an edge
MAX_NODES = 3  # that a box names
MARKED = "marked"  # the kind of a box or an edge that is part of a cycle or the longest chain

FONT, LINE, HEAD, FOOT = 12, 16, 24, 8  # pixels
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|![](){}/- "), frozenset("mwMW@%")


class Box(Value):
    """A box about nodes; its column is from 1, or 0 where Graphviz chooses one.

    `kinds` are names of styles, `MARKED` for instance.
    """

    title: str
    nodes: tuple[NodeName, ...]
    lines: tuple[str, ...] = ()
    rank: int = 0
    kinds: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[tuple[str, NodeName | None], ...]:
        """The lines that are drawn, each with the node that it names; the title is the first."""
        if len(self.nodes) == 1 and self.title.startswith(self.nodes[0]):
            named: list[tuple[str, NodeName | None]] = [(self.title, self.nodes[0])]
        else:
            named = [(self.title, None), *((node, node) for node in self.nodes[:MAX_NODES])]
            left = len(self.nodes) - MAX_NODES
            named += [(f"and {left} more", None)] if left > 0 else []
        return tuple(
            (shortened(text, MAX_LINE), node)
            for text, node in (*named, *((line, None) for line in self.lines))
        )

    @property
    def size(self) -> tuple[float, float]:
        """The width and the height, pixels."""
        (title, _), *rows = self.rows
        width = max([1.12 * width_of(title), *(width_of(text) for text, _ in rows)])
        return width + 24, HEAD + LINE * len(rows) + FOOT


class DiagramEdge(Value):
    """An edge; `kinds` as in `Box`."""

    start: int
    end: int
    label: str
    details: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


class Diagram(Value):
    """A diagram; see `make_diagram`.

    `heads` are the names of the ranks that have boxes; `notes` are lines below it, with a kind.
    """

    title: str
    heads: tuple[tuple[int, str], ...]
    boxes: tuple[Box, ...]
    edges: tuple[DiagramEdge, ...]
    notes: tuple[tuple[str, str], ...]

    @property
    def has_labels(self) -> bool:
        """Whether its edges have labels: a diagram with many edges has tooltips only."""
        return len(self.edges) <= MAX_LABELLED


class Arrow(Value):
    """Edges from each of some vertices to each of some others."""

    starts: frozenset[int]
    ends: frozenset[int]
    kinds: tuple[str, ...] = ()
    label: str = ""
    details: tuple[str, ...] = ()


def fold(keys: Sequence[Hashable], arrows: Iterable[Arrow]) -> list[list[int]]:
    """Return the classes of equal vertices, each sorted, in the order of their first vertex."""
    signs: list[set[Hashable]] = [set() for _ in keys]
    numbers: dict[frozenset[int], int] = {}
    for arrow in arrows:
        loops = arrow.starts == arrow.ends and len(arrow.starts) == 1
        for vertices, others, leaves in (
            (arrow.starts, arrow.ends, True),
            (arrow.ends, arrow.starts, False),
        ):
            other = -1 if loops else numbers.setdefault(others, len(numbers))
            for vertex in vertices:
                signs[vertex].add((leaves, arrow.kinds, other))
    classes: dict[Hashable, list[int]] = {}
    for vertex, key in enumerate(keys):
        classes.setdefault((key, frozenset(signs[vertex])), []).append(vertex)
    return list(classes.values())


def keep_classes(classes: Sequence[list[int]], marked: Set[int]) -> list[list[int]]:
    """Return the classes that are drawn: the marked ones, then the first ones, up to a limit."""
    order = sorted(range(len(classes)), key=lambda number: marked.isdisjoint(classes[number]))
    return [classes[number] for number in sorted(order[:MAX_BOXES])]


def join(classes: Sequence[Sequence[int]], arrows: Iterable[Arrow]) -> list[DiagramEdge]:
    """Return the edges between classes of vertices: one for each pair of classes and kind."""
    of = {vertex: number for number, members in enumerate(classes) for vertex in members}
    arrows_by_ends: dict[tuple[int, int, tuple[str, ...]], list[Arrow]] = {}
    for start, end, arrow in islice(_pairs(arrows, of), MAX_PAIRS):
        arrows_by_ends.setdefault((start, end, arrow.kinds), []).append(arrow)
    return [
        DiagramEdge(
            start=start,
            end=end,
            label=_listed(sorted({arrow.label for arrow in several if arrow.label})),
            details=tuple(dict.fromkeys(line for item in several for line in item.details)),
            kinds=kinds,
        )
        for (start, end, kinds), several in sorted(arrows_by_ends.items(), key=lambda pair: pair[0])
    ]


def _pairs(arrows: Iterable[Arrow], of: dict[int, int]) -> Iterator[tuple[int, int, Arrow]]:
    for arrow in arrows:
        ends = sorted({of[vertex] for vertex in arrow.ends if vertex in of})
        for start in sorted({of[vertex] for vertex in arrow.starts if vertex in of}):
            for end in ends:
                yield start, end, arrow


def make_diagram(
    title: str,
    boxes: Sequence[Box],
    edges: Sequence[DiagramEdge],
    *,
    left_out: int = 0,
    heads: Sequence[str] = (),
    notes: Iterable[tuple[str, str]] = (),
) -> Diagram:
    """Return a diagram without the edges that are too many; notes count what is left out.

    There are at most `MAX_BOXES` boxes. `heads` are the names of the ranks, from rank 1.
    """
    ranks = {box.rank for box in boxes}
    kept = sorted(edges, key=lambda edge: MARKED not in edge.kinds)[:MAX_EDGES]
    left = ((left_out, "boxes"), (len(edges) - len(kept), "edges"))
    return Diagram(
        title=shortened(title, 2 * MAX_LINE),
        heads=tuple((rank, head) for rank, head in enumerate(heads, 1) if rank in ranks),
        boxes=tuple(boxes),
        edges=tuple(replace(edge, label=shortened(edge.label, MAX_LABEL)) for edge in kept),
        notes=(
            *((kind, shortened(text, 3 * MAX_LINE)) for kind, text in notes),
            *(("", f"{count} more {what} are not drawn") for count, what in left if count),
        ),
    )


def width_of(text: str) -> float:
    """Return how wide a line is in a wide sans-serif font, pixels: no font is needed for it."""
    return FONT * sum(map(_width, text))


def _width(letter: str) -> float:
    if letter in _NARROW:
        return 0.42
    if letter in _WIDE or not letter.isascii():
        return 1.1 if east_asian_width(letter) in "WF" else 1.0
    return 0.76 if letter.isupper() else 0.65


def dot_text(diagram: Diagram) -> str:
    """Return DOT text with names, for people and their own `dot`."""
    notes = "".join(f"\\n{_escaped(text)}" for _, text in diagram.notes)
    red = ', color="#c0392b", penwidth=2'

    def rows(box: Box) -> str:
        return "".join(_escaped(text) + "\\l" for text, _ in box.rows)

    return _dot(
        diagram,
        f'labelloc=t; fontname="sans-serif"; label="{_escaped(diagram.title)}{notes}";'
        ' node [shape=box, style="rounded,filled", fillcolor="#f4f6f8", color="#5b6b7b",'
        ' fontname="sans-serif", fontsize=11];'
        ' edge [color="#7b8794", fontname="sans-serif", fontsize=9];',
        lambda head: f'shape=plaintext, style="", label="{_escaped(head)}"',
        lambda box: 'label="' + rows(box) + '"' + red * (MARKED in box.kinds),
        lambda edge: f'label="{_escaped(edge.label)}"' + red * (MARKED in edge.kinds),
    )


def dot_sizes(diagram: Diagram) -> str:
    """Return DOT text with sizes and without names, for the layout."""

    def sized(width: float, height: float) -> str:
        return f"width={width / 72:.3f}, height={height / 72:.3f}"

    def labelled(edge: DiagramEdge) -> str:
        if not edge.label or not diagram.has_labels:
            return ""
        size = f'WIDTH="{width_of(edge.label) + 8:.0f}" HEIGHT="{LINE}"'
        return f'label=<<TABLE BORDER="0" FIXEDSIZE="TRUE" {size}><TR><TD></TD></TR></TABLE>>'

    return _dot(
        diagram,
        'node [shape=box, fixedsize=true, label=""]; edge [arrowsize=0.8]; nslimit=4; nslimit1=4;',
        lambda _: "width=0, height=0",
        lambda box: sized(*box.size),
        labelled,
    )


def _dot(
    diagram: Diagram,
    style: str,
    head_text: Callable[[str], str],
    box_text: Callable[[Box], str],
    edge_text: Callable[[DiagramEdge], str],
) -> str:
    """Return DOT text; boxes are `b0`…, heads `h1`…, and the id of an edge is its number."""
    lines = ["digraph {", f"  rankdir=LR; ranksep=0.6; nodesep=0.22; {style}"]
    for rank, head in diagram.heads:
        inside = [f"b{number}" for number, box in enumerate(diagram.boxes) if box.rank == rank]
        lines += [
            f"  h{rank} [{head_text(head)}];",
            f"  {{rank=same; h{rank}; {'; '.join(inside)}}}",
        ]
    if len(diagram.heads) > 1:
        lines.append(f"  {' -> '.join(f'h{rank}' for rank, _ in diagram.heads)} [style=invis];")
    # Graphviz fills a column from below.
    boxes = reversed([*enumerate(diagram.boxes)])
    lines += [f"  b{number} [{box_text(box)}];" for number, box in boxes]
    lines += [
        f"  b{edge.start} -> b{edge.end} [id={number}, {edge_text(edge)}];"
        for number, edge in enumerate(diagram.edges)
    ]
    return "\n".join([*lines, "}", ""])


def _escaped(text: str) -> str:
    r"""Return a text inside a quoted string: no quote, no escape (`\N`), no entity (`&lt;`)."""
    line = one_line(text).replace("&", "&amp;")
    return line.replace("\\", "\\\\").replace('"', '\\"')


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


MAX_APPLICATIONS = 4  # that a box names
MAX_COMPONENTS = 3  # of an application
AGAIN = "again"


def plan_diagram(plan: Plan) -> Diagram:
    runs = plan.runs
    arrows = [*_repeats(runs), *_waits(runs)]
    every = fold([(run.group, run.total, *run.by_application()) for run in runs], arrows)
    links = {(link.group, link.node) for link in plan.chain if len(plan.chain) > 1}
    chain = {vertex for vertex, run in enumerate(runs) if (run.group, run.node) in links}
    classes = keep_classes(every, chain)
    boxes = [
        _box([runs[vertex] for vertex in members], is_marked=not chain.isdisjoint(members))
        for members in classes
    ]

    def is_drawn(edge: DiagramEdge) -> bool:
        start, end = boxes[edge.start], boxes[edge.end]
        return start.rank < end.rank and (edge.kinds == (AGAIN,) or start.nodes != end.nodes)

    steps = set(pairwise(number for number, box in enumerate(boxes) if MARKED in box.kinds))
    edges = [
        replace(edge, kinds=(*edge.kinds, MARKED)) if (edge.start, edge.end) in steps else edge
        for edge in filter(is_drawn, join(classes, arrows))
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
    classes = keep_classes(every, looping)
    boxes = [
        _role_box([roles[number] for number in members], is_marked=not looping.isdisjoint(members))
        for members in classes
    ]
    named = [len(role.nodes) for role in roles if role.nodes]
    return make_diagram(
        f"Which roles make which others run: {len(named)} roles, {sum(named)} nodes",
        boxes,
        join(classes, arrows),
        left_out=len(every) - len(classes),
        notes=_notes(relations),
    )


def _is_node(role: Role) -> bool:
    return [*map(str, role.nodes)] == [role.name]


def _role_box(roles: Sequence[Role], *, is_marked: bool) -> Box:
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
