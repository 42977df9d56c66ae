"""A picture of a plan as text for Graphviz: `localpuppet plan --dot | dot -Tpdf`."""

from localpuppet.rollout.plans.picture import Box, Edge, Picture

_HEAD = """\
digraph plan {
  rankdir=LR; ranksep=0.9; nodesep=0.25; labelloc=t; fontname="sans-serif";
  node [shape=box, style="rounded,filled", fillcolor="#f4f6f8", color="#5b6b7b",
        fontname="sans-serif", fontsize=11];
  edge [color="#7b8794", fontname="sans-serif", fontsize=9];
"""


def draw(picture: Picture) -> str:
    """Return the picture in the language of Graphviz."""
    notes = "".join(f"\\n{_escaped(note)}" for note in picture.notes)
    lines = [f'{_HEAD}  label="{_escaped(picture.title)}{notes}";']
    for group, head in enumerate(picture.heads, 1):
        lines.append(f'  g{group} [shape=plaintext, style="", label="{head}"];')
        inside = [index for index, box in enumerate(picture.boxes) if box.group == group]
        lines.append(f"  {{ rank=same; g{group}; {' '.join(f'r{index};' for index in inside)} }}")
    path = " -> ".join(f"g{group}" for group in range(1, len(picture.heads) + 1))
    lines += [f"  {path} [style=invis];"] if len(picture.heads) > 1 else []
    lines += [_box(index, box) for index, box in enumerate(picture.boxes)]
    lines += [_edge(edge) for edge in picture.edges]
    return "\n".join([*lines, "}", ""])


def _box(index: int, box: Box) -> str:
    label = "\\l".join(_escaped(line) for line in (box.title, *box.lines)) + "\\l"
    more = ', fillcolor="#fff3d6"' if box.again else ""
    more += ', color="#c0392b", penwidth=2' if box.critical else ""
    return f'  r{index} [label="{label}"{more}];'


def _edge(edge: Edge) -> str:
    if not edge.label:
        return f'  r{edge.start} -> r{edge.end} [style=dashed, color="#b7791f"];'
    more = ', color="#c0392b", penwidth=2' if edge.critical else ""
    return f'  r{edge.start} -> r{edge.end} [label="{_escaped(edge.label)}"{more}];'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
