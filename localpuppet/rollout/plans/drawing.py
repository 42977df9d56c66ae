"""A picture of who makes whom run, as SVG: a box for each role, cycles in red.

Owns: the drawing, and what is left out so that people can read it.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise

from localpuppet.base.formats.text import one_line
from localpuppet.fleet.roles.links import By
from localpuppet.fleet.roles.relations import NOBODY, Edge, Relations, Role
from localpuppet.rollout.plans.layout import Layout, arrange
from localpuppet.rollout.plans.svg_parts import (
    LETTER,
    LINE,
    LONGEST,
    MARGIN,
    Place,
    document,
    text,
)

MOST_BOXES = 60
MOST_EDGES = 200
MOST_NODES = 3  # that a box names
MOST_CYCLES = 12  # that are named below the picture
TOP, GAP, BETWEEN, LANE = 64, 26, 120, 10
HEAD, FOOT = 22, 9
LEAST_WIDTH = 560
BOLD = 1.1  # the width of a bold letter
_COLORS = {By.KICK: "#2563a8", By.QUERY: "#2e7d54", By.COLLECT: "#7a4b9e", By.TRIGGER: "#8a6d3b"}
_WORDS = {
    By.KICK: "kicks",
    By.QUERY: "is asked about by",
    By.COLLECT: "exports to",
    By.TRIGGER: "has triggered",
}
_CYCLE = "#c0392b"
_ARROWS = {**{str(by): color for by, color in _COLORS.items()}, "cycle": _CYCLE}
_STYLE = (
    "".join(f".{by} {{ stroke: {color}; }}\n" for by, color in _COLORS.items())
    + f"""\
.edge {{ stroke-width: 1.5; }}
.query {{ stroke-dasharray: 7 4; }}
.trigger {{ stroke-dasharray: 2 3; }}
.edge.cycle {{ stroke: {_CYCLE}; stroke-width: 2.5; }}
.box.cycle {{ stroke: {_CYCLE}; stroke-width: 2; }}
.nobody {{ fill: #fff; stroke-dasharray: 4 4; }}
.part {{ fill: #52606d; }}
.red {{ fill: {_CYCLE}; }}
"""
)


def draw(found: Relations) -> str:
    """Return the picture as an SVG document."""
    roles = found.roles[:MOST_BOXES]
    index = {role.name: number for number, role in enumerate(roles)}
    drawable = [edge for edge in found.edges if edge.start in index and edge.end in index]
    edges = drawable[:MOST_EDGES]
    layout = arrange(len(roles), ((index[edge.start], index[edge.end]) for edge in edges))
    looping = {step for cycle in found.cycles for step in pairwise(cycle.path)}
    red = {name for step in looping for name in step}
    places = _places(layout, roles)
    body = []
    for edge, way in _ways(layout, edges, index, places):
        body.append(_path(edge, way, (edge.start, edge.end) in looping))
    body += [
        _loop(edge, places[index[edge.start]], (edge.start, edge.end) in looping)
        for edge in edges
        if edge.start == edge.end
    ]
    body += [_box(role, places[number], role.name in red) for number, role in enumerate(roles)]
    bottom = max([place.y + place.height for place in places.values()], default=TOP) + 44
    body += _legend(edges, bottom, cycles=bool(found.cycles))
    notes = _notes(found, boxes=len(roles), edges=len(edges))
    body += [
        text(MARGIN, bottom + LINE * (row + 1) + 10, note, kind, most=140)
        for row, (kind, note) in enumerate(notes)
    ]
    widest = max([place.x + place.width for place in places.values()], default=0) + MARGIN
    longest = max([len(note) for _, note in notes], default=0)
    width = max(widest, LEAST_WIDTH, 2 * MARGIN + LETTER * min(longest, 140))
    height = bottom + LINE * len(notes) + MARGIN
    return document(_title(found), (width, height), _STYLE, _ARROWS, body)


def _title(found: Relations) -> str:
    held = [len(role.nodes) for role in found.roles if role.nodes]
    return f"Who makes whom run: {len(held)} roles, {sum(held)} nodes"


def _places(layout: Layout, roles: Sequence[Role]) -> dict[int, Place]:
    """Return where boxes and bends stand: each column in the middle."""
    heights = {
        vertex: HEAD + LINE * len(_lines(roles[vertex])) + FOOT if vertex < len(roles) else LANE
        for column in layout.columns
        for vertex in column
    }
    columns = [
        sum(heights[vertex] for vertex in column) + GAP * (len(column) - 1)
        for column in layout.columns
    ]
    tallest = max(columns, default=0)
    places = {}
    x: float = MARGIN
    for column, height in zip(layout.columns, columns, strict=True):
        boxes = [roles[vertex] for vertex in column if vertex < len(roles)]
        widest = max((len(line) for role in boxes for line in _lines(role)), default=0)
        boldest = max((len(_name(role)) for role in boxes), default=0)
        width = min(max(widest, boldest * BOLD), LONGEST) * LETTER + 20
        y = TOP + (tallest - height) / 2
        for vertex in column:
            places[vertex] = Place(x=x, y=y, width=width, height=heights[vertex])
            y += heights[vertex] + GAP
        x += width + BETWEEN
    return places


def _name(role: Role) -> str:
    return one_line(role.name.removeprefix(NOBODY))[:LONGEST]


def _lines(role: Role) -> list[str]:
    if not role.nodes:
        return ["nobody has it"]
    if [str(node) for node in role.nodes] == [role.name]:
        return ["no role"]
    left = len(role.nodes) - MOST_NODES
    return [*map(str, role.nodes[:MOST_NODES]), *([f"and {left} more"] if left > 0 else [])]


def _ways(
    layout: Layout, edges: Sequence[Edge], index: Mapping[str, int], places: Mapping[int, Place]
) -> Iterator[tuple[Edge, list[tuple[float, float]]]]:
    """Yield each edge with its points; between each second pair of them it is straight.

    Edges that leave a box on the same side leave it one below the other, and do not cross there.
    """
    lanes = []
    for wire in layout.wires:
        ends = {wire.left, wire.right}
        there = [edge for edge in edges if {index[edge.start], index[edge.end]} == ends]
        lanes += [(wire, number, len(there), edge) for number, edge in enumerate(there)]
    sides: dict[tuple[int, bool], list[tuple[float, int]]] = {}
    for lane, (wire, *_) in enumerate(lanes):
        way = (wire.left, *wire.bends, wire.right)
        sides.setdefault((wire.left, True), []).append((places[way[1]].middle, lane))
        sides.setdefault((wire.right, False), []).append((places[way[-2]].middle, lane))
    ports = {
        (vertex, right, lane): places[vertex].middle
        + _offset(number, len(found), room=places[vertex].height)
        for (vertex, right), found in sides.items()
        for number, (_, lane) in enumerate(sorted(found))
    }
    for lane, (wire, number, count, edge) in enumerate(lanes):
        start, end = places[wire.left], places[wire.right]
        points = [(start.x + start.width, ports[wire.left, True, lane])]
        for bend in wire.bends:
            place = places[bend]
            y = place.middle + _offset(number, count, room=LANE * count + FOOT)
            points += [(place.x, y), (place.x + place.width, y)]
        points.append((end.x, ports[wire.right, False, lane]))
        yield edge, points if index[edge.start] == wire.left else points[::-1]


def _offset(number: int, count: int, *, room: float) -> float:
    """Return how far below the middle of `room` pixels one of some lanes is."""
    return (number - (count - 1) / 2) * min(LANE, (room - FOOT) / count)


def _path(edge: Edge, way: list[tuple[float, float]], cycle: bool) -> str:
    (x, y), *rest = way
    drawn = f"M{x:.0f} {y:.0f}"
    for number, (next_x, next_y) in enumerate(rest):
        if number % 2:
            drawn += f"H{next_x:.0f}"
        else:
            bend = (next_x - x) / 2
            drawn += (
                f"C{x + bend:.0f} {y:.0f} {next_x - bend:.0f} {next_y:.0f}"
                f" {next_x:.0f} {next_y:.0f}"
            )
        x, y = next_x, next_y
    return _line(edge, drawn, cycle)


def _loop(edge: Edge, place: Place, cycle: bool) -> str:
    """Return an arrow from a box to itself, above it."""
    x, y = place.x + place.width - 34, place.y
    return _line(edge, f"M{x:.0f} {y:.0f}c-6 -24 30 -24 24 0", cycle)


def _line(edge: Edge, drawn: str, cycle: bool) -> str:
    head = "cycle" if cycle else str(edge.by)
    words = f"{edge.start} {_WORDS[edge.by]} {edge.end}"
    title = "\n".join([words, *edge.texts])
    return (
        f'<path class="edge {edge.by}{" cycle" * cycle}" marker-end="url(#{head})" d="{drawn}">'
        f"<title>{escape(one_line(title) if edge.texts else title)}</title></path>"
    )


def _box(role: Role, place: Place, red: bool) -> str:
    kind = f"box{' nobody' * (not role.nodes)}{' cycle' * red}"
    title = "\n".join((_name(role), *map(str, role.nodes[:LONGEST])))
    parts = [
        f'<g><title>{escape(title)}</title><rect class="{kind}" x="{place.x:.0f}"'
        f' y="{place.y:.0f}" width="{place.width:.0f}" height="{place.height:.0f}" rx="6"/>',
        text(place.x + 10, place.y + 17, _name(role), "node"),
    ]
    parts += [
        text(place.x + 10, place.y + HEAD + LINE * (number + 1) - 4, line, "part")
        for number, line in enumerate(_lines(role))
    ]
    return "".join([*parts, "</g>"])


def _legend(edges: Sequence[Edge], y: float, *, cycles: bool) -> list[str]:
    there = [by for by in By if any(edge.by is by for edge in edges)]
    shown = [(str(by), str(by), _WORDS[by]) for by in there]
    shown += [("cycle", "cycle", "part of a cycle")] if cycles else []
    parts = []
    x = MARGIN
    for kind, head, words in shown:
        parts += [
            f'<path class="edge {kind}" marker-end="url(#{head})" d="M{x} {y - 4:.0f}h34"/>',
            text(x + 42, y, words, "note"),
        ]
        x += 60 + int(LETTER * len(words))
    return parts


def _notes(found: Relations, *, boxes: int, edges: int) -> list[tuple[str, str]]:
    notes = [("red", f"cycle: {one_line(one.shown)}") for one in found.cycles[:MOST_CYCLES]]
    if len(found.cycles) > MOST_CYCLES:
        notes.append(("red", f"{len(found.cycles) - MOST_CYCLES} more cycles"))
    if not found.edges:
        notes.append(("note", "nobody kicks, asks about, collects from or triggers another node"))
    if found.left:
        notes.append(("note", f"{found.left} kicks and queries took too long to look at"))
    if len(found.roles) > boxes:
        notes.append(("note", f"{len(found.roles) - boxes} more roles are not drawn"))
    if len(found.edges) > edges:
        notes.append(("note", f"{len(found.edges) - edges} more edges are not drawn"))
    return notes
