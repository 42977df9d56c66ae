"""A picture of a plan as SVG: a column for each group, time from left to right.

Owns: the drawing; a browser shows it as it stands.
"""

from html import escape

from localpuppet.rollout.plans.picture import Box, Edge, Picture
from localpuppet.rollout.plans.svg_parts import (
    LETTER,
    LINE,
    LONGEST,
    MARGIN,
    Place,
    document,
    text,
)

LABELLED = 40  # edges have labels in pictures with at most so many
TOP, GAP, BETWEEN = 74, 16, 150
HEAD, FOOT = 22, 9
_STYLE = """\
.group { font-size: 12px; font-weight: bold; fill: #52606d; text-anchor: middle; }
.again { fill: #fff3d6; }
.chain { stroke: #c0392b; stroke-width: 2.5; }
.edge.chain { stroke: #c0392b; stroke-width: 2.5; }
.edge.same { stroke: #b7791f; stroke-dasharray: 5 4; }
.label { font-size: 10px; fill: #52606d; text-anchor: middle; stroke: #fff; stroke-width: 3px;
  paint-order: stroke; }
"""
_ARROWS = {"to": "#7b8794", "chain-to": "#c0392b", "same-to": "#b7791f"}


def draw(picture: Picture) -> str:
    """Return the picture as an SVG document."""
    places = _places(picture)
    width = max([place.x + place.width for place in places], default=300) + MARGIN
    width = max(width, 2 * MARGIN + 8.5 * len(picture.title), 560)
    bottom = max([place.y + place.height for place in places], default=TOP) + 40
    height = bottom + LINE * len(picture.notes) + MARGIN
    body = _heads(picture, places)
    ordered = sorted(picture.edges, key=lambda edge: edge.critical)
    body += [_edge(edge, places) for edge in ordered]
    body += [_box(box, place) for box, place in zip(picture.boxes, places, strict=True)]
    if len(picture.edges) <= LABELLED:
        body += [_label(edge, places) for edge in ordered if edge.label]
    body += _legend(picture, bottom)
    body += [
        text(MARGIN, bottom + LINE * (number + 1) + 6, note, "note")
        for number, note in enumerate(picture.notes)
    ]
    return document(picture.title, (width, height), _STYLE, _ARROWS, body)


def _places(picture: Picture) -> list[Place]:
    """Return where each box stands: a column a group, each column in the middle."""
    columns: dict[int, list[Box]] = {}
    for box in picture.boxes:
        columns.setdefault(box.group, []).append(box)
    heights = {
        group: sum(_height(box) + GAP for box in boxes) - GAP for group, boxes in columns.items()
    }
    tallest = max(heights.values(), default=0)
    places = []
    x: float = MARGIN
    for group, boxes in columns.items():
        letters = max(len(line) for box in boxes for line in (box.title, *box.lines))
        width = min(letters, LONGEST) * LETTER + 20
        y = TOP + (tallest - heights[group]) / 2
        for box in boxes:
            places.append(Place(x=x, y=y, width=width, height=_height(box)))
            y += _height(box) + GAP
        x += width + BETWEEN
    return places


def _height(box: Box) -> int:
    return HEAD + LINE * len(box.lines) + FOOT


def _heads(picture: Picture, places: list[Place]) -> list[str]:
    seen: dict[int, Place] = {}
    for box, place in zip(picture.boxes, places, strict=True):
        seen.setdefault(box.group, place)
    return [
        text(place.x + place.width / 2, TOP - 16, picture.heads[group - 1], "group")
        for group, place in seen.items()
    ]


def _box(box: Box, place: Place) -> str:
    kind = " ".join(["box", *["again"] * box.again, *["chain"] * box.critical])
    title = "\n".join((box.title, *box.lines))
    lines = [
        f'<g><title>{escape(title)}</title><rect class="{kind}" x="{place.x:.0f}"'
        f' y="{place.y:.0f}" width="{place.width:.0f}" height="{place.height:.0f}" rx="6"/>',
        text(place.x + 10, place.y + 17, box.title, "node"),
    ]
    lines += [
        text(place.x + 10, place.y + HEAD + LINE * (number + 1) - 4, line, "part")
        for number, line in enumerate(box.lines)
    ]
    return "".join([*lines, "</g>"])


def _edge(edge: Edge, places: list[Place]) -> str:
    start, end = places[edge.start], places[edge.end]
    kind = "chain" if edge.critical else "" if edge.label else "same"
    marker = f"{kind}-to" if kind else "to"
    x, y = start.x + start.width, start.middle
    bend = (end.x - x) / 2
    return (
        f'<path class="edge {kind}" marker-end="url(#{marker})" d="M{x:.0f} {y:.0f}'
        f" C{x + bend:.0f} {y:.0f} {end.x - bend:.0f} {end.middle:.0f}"
        f' {end.x:.0f} {end.middle:.0f}"><title>{escape(edge.label)}</title></path>'
    )


def _label(edge: Edge, places: list[Place]) -> str:
    start, end = places[edge.start], places[edge.end]
    # A point of the curve nearer to its end: there the edges of one producer have parted.
    x = start.x + start.width + 0.59 * (end.x - start.x - start.width)
    y = start.middle + 0.68 * (end.middle - start.middle)
    return text(x, y - 4, edge.label, "label", most=20)


def _legend(picture: Picture, y: float) -> list[str]:
    parts = []
    x = MARGIN
    for there, kind, marker, words in (
        (True, "", "to", "has to come before"),
        (any(edge.critical for edge in picture.edges), "chain", "chain-to", "the longest chain"),
        (any(box.again for box in picture.boxes), "same", "same-to", "the same node again"),
    ):
        if there:
            parts += [
                f'<path class="edge {kind}" marker-end="url(#{marker})" d="M{x} {y - 4:.0f}h34"/>',
                text(x + 42, y, words, "note"),
            ]
            x += 180
    return parts
