"""What all our pictures are made of: an SVG document, its text and its arrows.

Owns: that a picture is one whole file, without a program, a font or a link of this machine, and
that text is escaped. Refuses to know: what is drawn.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

LETTER = 7.2  # the width of a letter of 11 pixels, about
LONGEST = 44  # letters in a line
MARGIN = 24
LINE = 15
STYLE = """\
text { font: 11px sans-serif; fill: #1f2933; }
.title { font-size: 15px; font-weight: bold; }
.node { font-weight: bold; }
.box { fill: #f4f6f8; stroke: #5b6b7b; }
.edge { fill: none; stroke: #7b8794; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a box or a bend stands; pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The height at which arrows begin and end."""
        return self.y + self.height / 2


def document(
    title: str,
    size: tuple[float, float],
    style: str,
    arrows: Mapping[str, str],
    body: Iterable[str],
) -> str:
    """Return a picture.

    Args:
        title: What it shows; it stands at the top.
        size: Width and height, pixels.
        style: CSS of its own, besides `STYLE`.
        arrows: Heads of arrows by name, and their colours.
        body: What is drawn.
    """
    width, height = size
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
        f' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" fill="{color}"/>'
        "</marker>"
        for name, color in arrows.items()
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
            f' viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{STYLE}{style}</style><defs>{heads}</defs>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            text(MARGIN, 30, title, "title"),
            *body,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, words: str, kind: str, *, most: int = LONGEST) -> str:
    """Return a line of text; a long one is cut, but for a title."""
    shown = words if len(words) <= most or kind == "title" else f"{words[: most - 1]}…"
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{escape(shown)}</text>'
