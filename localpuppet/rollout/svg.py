"""Diagrams as SVG, with the layout of Graphviz.

Names are escaped text. Links lead only to pages of nodes. There is no script, no image, no font and
no address of another machine. Colours are variables of `STYLE`, light and dark.

Its input has sizes and numbers only (`diagram.dot_sizes`), so no name from the bus reaches it.
Time, memory and output are limited.
"""

import os
import re
from collections.abc import Iterable
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import last_words, shortened
from localpuppet.base.machine import isolation
from localpuppet.rollout import diagram as drawing

MARGIN, TOP = 16, 66  # pixels
MAX_TOOLTIP, MAX_LETTERS = 40, 200  # lines of a tooltip, and letters of a line
STYLE = """\
.graph { --g-paper: #fff; --g-ink: #1b2430; --g-soft: #5a6675; --g-box: #f4f6f9; --g-line: #a9b4c1;
  --g-edge: #7c8997; --g-red: #c0392b; --g-red-box: #fdf0ee; --g-again: #fff3d6; --g-link: #1557a6;
  --g-kick: #2563a8; --g-query: #2c7a52; --g-collect: #6a3fb0; --g-trigger: #8a6100; }
@media screen and (prefers-color-scheme: dark) {
  .graph { --g-paper: #1a212b; --g-ink: #e4e9f0; --g-soft: #9aa7b6; --g-box: #242d39;
    --g-line: #4a5867; --g-edge: #8593a3; --g-red: #ff8d83; --g-red-box: #3a2426;
    --g-again: #3d2f14; --g-link: #82b6f5; --g-kick: #7db5f3; --g-query: #6fcf9b;
    --g-collect: #bda2f7; --g-trigger: #f0b455; }
}
.graph text { font: 12px system-ui, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
  fill: var(--g-soft); }
.graph .title { font-weight: 700; fill: var(--g-ink); }
.graph > .title { font-size: 15px; }
.graph .head { font-weight: 700; text-anchor: middle; }
.graph a text, .graph a .title { fill: var(--g-link); }
.graph a:hover text { text-decoration: underline; }
.graph .paper { fill: var(--g-paper); }
.graph .box rect { fill: var(--g-box); stroke: var(--g-line); }
.graph .again rect { fill: var(--g-again); }
.graph .lost rect { fill: none; stroke-dasharray: 4 4; }
.graph .box.marked rect { fill: var(--g-red-box); stroke: var(--g-red); stroke-width: 1.5; }
.graph .edge { --g: var(--g-edge); }
.graph .edge.kick { --g: var(--g-kick); }
.graph .edge.query { --g: var(--g-query); }
.graph .edge.collect { --g: var(--g-collect); }
.graph .edge.trigger { --g: var(--g-trigger); }
.graph .edge.marked { --g: var(--g-red); }
.graph .edge path { fill: none; stroke: var(--g); stroke-width: 1.4; }
.graph .edge.marked path { stroke-width: 2.2; }
.graph .edge.again path, .graph .edge.query path { stroke-dasharray: 6 4; }
.graph .edge.trigger path { stroke-dasharray: 2 3; }
.graph .edge .tip { fill: var(--g); stroke: none; }
.graph .edge text { font-size: 11px; text-anchor: middle;
  stroke: var(--g-paper); stroke-width: 3px; paint-order: stroke; }
.graph .note.marked { fill: var(--g-red); }
"""
_POINT = re.compile(r"(-?[\d.]+(?:e[+-]?\d+)?),(-?[\d.]+(?:e[+-]?\d+)?)")

Point = tuple[float, float]


def write_svg(diagram: drawing.Diagram, placed: dict[str, Any], node_page: str) -> str:
    """Return a diagram as an SVG element, placed as `dot -Tjson0` returns for `dot_sizes`.

    A node's name follows `node_page`; a separate file without one includes its style and no links.
    """
    _, _, right, top = map(float, placed["bb"].split(","))

    def points(text: str) -> list[Point]:
        return [(float(x) + MARGIN, top - float(y) + TOP) for x, y in _POINT.findall(text)]

    at = {
        placed_node["name"]: points(placed_node["pos"])[0]
        for placed_node in placed.get("objects", ())
        if "pos" in placed_node
    }
    lowest = [at[f"b{number}"][1] + box.size[1] / 2 for number, box in enumerate(diagram.boxes)]
    body = [_text((at[f"h{rank}"][0], 52), head, "head") for rank, head in diagram.heads]
    for edge in placed.get("edges", ()):
        if "id" in edge:
            drawn, way = diagram.edges[int(edge["id"])], points(edge["pos"])
            lowest += [y for _, y in way]
            label = [_text((x, y + 4), drawn.label, "label") for x, y in points(edge.get("lp", ""))]
            tooltip = drawn.details or (drawn.label,)
            body.append(_group(("edge", *drawn.kinds), tooltip, [_curve(way), *label]))
    body += [
        _drawn_box(box, at[f"b{number}"], node_page) for number, box in enumerate(diagram.boxes)
    ]
    below = max(lowest, default=TOP) + 12
    body += [
        _text((MARGIN, below + drawing.LINE * number), text, f"note {kind}".strip())
        for number, (kind, text) in enumerate(diagram.notes, 1)
    ]
    texts = (
        1.3 * drawing.width_of(diagram.title),
        *(drawing.width_of(text) for _, text in diagram.notes),
    )
    width = f"{2 * MARGIN + max(right, *texts):.0f}"
    height = f"{below + drawing.LINE * len(diagram.notes) + MARGIN:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" width="{width}"'
            f' height="{height}" viewBox="0 0 {width} {height}">',
            *([] if node_page else [f"<style>\n{STYLE}</style>"]),
            _tooltip((diagram.title,)),
            f'<rect class="paper" width="{width}" height="{height}"/>',
            _text((MARGIN, 26), diagram.title, "title"),
            *body,
            "</svg>",
            "",
        ]
    )


def _drawn_box(box: drawing.Box, middle: Point, node_page: str) -> str:
    width, height = box.size
    x, y = middle[0] - width / 2, middle[1] - height / 2
    parts = [f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="7"/>']
    for row, (text, node) in enumerate(box.rows):
        place = (x + drawing.FONT, y + drawing.HEAD - 6 + drawing.LINE * row + (2 if row else 0))
        line = _text(place, text, "line" if row else "title")
        page = escape(node_page + quote(node or "", safe=""))
        parts.append(f'<a href="{page}">{line}</a>' if node and node_page else line)
    untitled = [node for node in box.nodes if not box.title.startswith(node)]
    return _group(("box", *box.kinds), (box.title, *untitled, *box.lines), parts)


def _curve(points: list[Point]) -> str:
    """Return a curve and the triangle at its end: Graphviz names the end first."""
    (x, y), *curve = points
    (left, high), *rest = curve
    drawn = " ".join(f"{a:.1f} {b:.1f}" for a, b in rest)
    last_x, last_y = curve[-1]
    across, down = (x - last_x) * 0.4, (y - last_y) * 0.4
    return (
        f'<path d="M{left:.1f} {high:.1f}C{drawn}"/><path class="tip" d="M{x:.1f} {y:.1f}'
        f"L{last_x - down:.1f} {last_y + across:.1f} {last_x + down:.1f} {last_y - across:.1f}z"
        '"/>'
    )


def _group(kinds: Iterable[str], tooltip: Iterable[str], parts: Iterable[str]) -> str:
    return f'<g class="{" ".join(kinds)}">{_tooltip(tooltip)}{"".join(parts)}</g>'


def _tooltip(lines: Iterable[str]) -> str:
    shown = (shortened(line, MAX_LETTERS) for line in islice(lines, MAX_TOOLTIP))
    return "<title>" + escape("\n".join(shown)) + "</title>"


def _text(place: Point, text: str, kind: str) -> str:
    x, y = place
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


BOUNDS = isolation.Bounds(
    seconds=5, output=2 * 1024 * 1024, errors=4096, memory=256 * 1024 * 1024, file=0
)


def draw_svg(
    diagram: drawing.Diagram,
    node_page: str = "",
    *,
    program: str = "dot",
    bounds: isolation.Bounds = BOUNDS,
) -> str:
    """Return a diagram as SVG.

    Raises:
        UnavailableError: Graphviz is not installed, fails, or exceeds a limit.
    """
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    text = drawing.dot_sizes(diagram).encode("ascii")
    try:
        done = isolation.run(
            [program, "-Tjson0"], env=env, cwd=Path("/"), bounds=bounds, stdin=text
        )
    except OSError as error:
        raise UnavailableError(
            f"cannot start '{program}': {error.strerror or 'it is not installed'}",
            where="Graphviz",
            hint="install it: 'apt install graphviz'; DOT text needs no program",
        ) from error
    if done.code or done.flooded or not done.in_time:
        problem = last_words(done.err, most=200) or f"'{program}' ended with {done.code}"
        if not done.in_time:
            problem = f"'{program}' did not end within {bounds.seconds:g} s"
        raise UnavailableError(problem, where="Graphviz", hint="select fewer nodes, or use '--dot'")
    return write_svg(diagram, loads(done.out), node_page)


def render_diagram(diagram: drawing.Diagram, form: str) -> str:
    """Return a diagram as `svg` or `dot`, without the last newline."""
    draw = draw_svg if form == "svg" else drawing.dot_text
    return draw(diagram).removesuffix("\n")
