"""Draw the layers and packages of the code as one SVG, from the imports of its modules.

A layer imports only layers below it. Within a layer, a column imports only columns to its right:
the place of a package is the longest chain of imports from it. Imports inside of functions and for
types alone count, too.
"""

import ast
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ROOT / "localpuppet"
LAYERS = ("web", "rollout", "fleet", "node", "base")  # the highest first
WIDTH, LEFT, MARGIN = 1000, 238, 16
LETTER, LINE, GAP, ARROW = 7.8, 24, 6, 22
STYLE = """
svg { --paper: #f7f9fb; --band: #fff; --line: #9aa5b1; --ink: #1f2933; --soft: #52606d; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #161c24; --band: #1f2730; --line: #4a5867; --ink: #e4e9f0; --soft: #9aa7b6; }
}
text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
.layer { font-weight: 700; font-size: 15px; }
.soft { fill: var(--soft); }
.paper { fill: var(--paper); }
.band { fill: var(--band); stroke: var(--line); }
.box { fill: var(--paper); stroke: var(--line); }
"""

Imports = Mapping[str, frozenset[str]]


def read_imports() -> Imports:
    """Return package or module of a layer, `fleet/bus`, → what it imports, in the same form."""
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in CODE.rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for module, file in modules.items():
        unit = _unit(module.removesuffix(".__init__"))
        if unit is None:
            continue
        names = imports.setdefault(unit, set())
        for name in _imported(ast.parse(file.read_text("utf-8"))):
            if (other := _unit(name)) not in (None, unit):
                names.add(str(other))
    known = imports.keys()
    return {unit: frozenset(names & known) for unit, names in imports.items()}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def _unit(name: str) -> str | None:
    """Return the box of a name, its layer and the part below that; `None` for other names."""
    parts = name.split(".")
    if parts[0] != "localpuppet" or len(parts) < 3 or parts[1] not in LAYERS:
        return None
    return f"{parts[1]}/{parts[2]}"


def find_columns(layer: str, imports: Imports) -> list[list[str]]:
    """Return the packages of a layer in columns, each sorted; a column imports those after it.

    Raises:
        ValueError: Packages import each other, or a layer above.
    """
    mine = {
        unit: frozenset(name for name in names if name.startswith(f"{layer}/"))
        for unit, names in imports.items()
        if unit.startswith(f"{layer}/")
    }
    above = LAYERS[: LAYERS.index(layer)]
    wrong = [
        f"{unit} imports {name}"
        for unit in mine
        for name in sorted(imports[unit])
        if name.partition("/")[0] in above
    ]
    if wrong:
        raise ValueError(f"a layer imports one above it: {wrong[0]}")
    columns: list[list[str]] = []
    left = dict(mine)
    while left:
        ready = sorted(unit for unit, names in left.items() if not names & left.keys())
        if not ready:
            raise ValueError(f"packages import each other: {', '.join(sorted(left))}")
        columns.append(ready)
        left = {unit: names for unit, names in left.items() if unit not in ready}
    return columns[::-1]


def draw(imports: Imports) -> str:
    """Return the drawing as the text of an SVG file."""
    parts: list[str] = []
    top = MARGIN
    for layer in LAYERS:
        below = [
            other
            for other in LAYERS
            if any(
                name.startswith(f"{other}/")
                for unit, names in imports.items()
                if unit.startswith(f"{layer}/")
                for name in names
            )
        ]
        boxes, height = _place(find_columns(layer, imports), top + GAP)
        parts += [
            f'<rect class="band" x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}"'
            f' height="{height}" rx="6"/>',
            _text(MARGIN + 12, top + 24, layer, "layer"),
            *(
                _text(MARGIN + 12, top + 42 + 16 * number, line, "soft")
                for number, line in enumerate(_words(layer, [one for one in below if one != layer]))
            ),
            *boxes,
        ]
        top += height + GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + GAP}"'
            f' width="{WIDTH}" height="{top + GAP}" role="img"'
            ' aria-label="The layers of localpuppet and their packages, by what they import">',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{top + GAP}" rx="8"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _words(layer: str, below: list[str]) -> Iterator[str]:
    """Yield the lines below the name of a layer: what it is, and which layers it imports."""
    line = ""
    for word in _first_line(CODE / layer / "__init__.py").rstrip(".").split():
        if len(f"{line} {word}") > 28:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line
    yield f"imports {', '.join(below)}" if below else "imports no layer"


def _place(columns: list[list[str]], top: int) -> tuple[list[str], int]:
    """Return the boxes of a layer from left to right, in rows, and the height of its band."""
    parts: list[str] = []
    x, row, tallest = float(LEFT), top, 0
    for number, column in enumerate(columns):
        names = [unit.partition("/")[2] for unit in column]
        width = LETTER * max(map(len, names)) + 14
        if x + width > WIDTH - MARGIN - GAP - ARROW:
            x, row, tallest = float(LEFT), row + tallest + 2 * GAP, 0
        for place, (unit, name) in enumerate(zip(column, names, strict=True)):
            y = row + place * (LINE + GAP)
            parts.append(
                f"<g><title>{escape(_what(unit))}</title>"
                f'<rect class="box" x="{x:.0f}" y="{y}" width="{width:.0f}"'
                f' height="{LINE}" rx="4"/>'
                f"{_text(x + 7, y + 17, name)}</g>"
            )
        x += width
        if number + 1 < len(columns):
            parts.append(_text(x + 5, row + 17, "→", "soft"))
        x += ARROW
        tallest = max(tallest, len(column) * (LINE + GAP) - GAP)
    return parts, max(row + tallest + GAP - top + GAP, 96)


def _what(unit: str) -> str:
    module = (CODE / unit).with_suffix(".py")
    return _first_line(module if module.is_file() else CODE / unit / "__init__.py")


def _first_line(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n")[0]


def _text(x: float, y: float, text: str, kind: str = "name") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y}">{escape(text)}</text>'
