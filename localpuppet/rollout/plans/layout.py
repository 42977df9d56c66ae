"""Where the vertices of a small graph stand so that its edges can be followed by eye.

Owns: columns, rows, and the bends of long edges. Refuses to know: what vertices stand for, pixels.

- Every edge leads from column to column, and most of them to the right: those that would close a
  circle lead to the left, along the same wire as an edge that leads the other way.
- A wire that crosses a column has a bend there, which takes a place among the vertices; so no wire
  runs through a box.
- In a column each stands near the middle of what it is joined to on its left and right.

It is Sugiyama's method (IEEE Trans. SMC 11, 1981) in its shortest form.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What joins two vertices, in one direction or in both.

    Attributes:
        left: The vertex on its left end.
        right: That on its right.
        bends: A vertex of its own for each column between them, from left to right.
    """

    left: int
    right: int
    bends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where vertices stand.

    Attributes:
        columns: From left to right; the vertices of each from top to bottom, bends among them.
        wires: Each pair of vertices that an edge joins, once.
    """

    columns: tuple[tuple[int, ...], ...]
    wires: tuple[Wire, ...]


def arrange(count: int, edges: Iterable[tuple[int, int]]) -> Layout:
    """Return where vertices stand.

    Args:
        count: Vertices are the numbers below it; bends are numbers from it on.
        edges: Pairs of two vertices; an edge to the same vertex has no wire.
    """
    successors: list[list[int]] = [[] for _ in range(count)]
    for start, end in sorted(set(edges)):
        if start != end:
            successors[start].append(end)
    order, backwards = _depth_first(successors)
    pairs = sorted(
        {
            (end, start) if (start, end) in backwards else (start, end)
            for start, below in enumerate(successors)
            for end in below
        }
    )
    levels = _levels(order, pairs)
    columns: list[list[int]] = [[] for _ in range(max(levels, default=-1) + 1)]
    for vertex, level in enumerate(levels):
        columns[level].append(vertex)
    wires = []
    following = count
    for left, right in pairs:
        between = range(levels[left] + 1, levels[right])
        bends = tuple(range(following, following + len(between)))
        following += len(bends)
        for bend, level in zip(bends, between, strict=True):
            columns[level].append(bend)
        wires.append(Wire(left=left, right=right, bends=bends))
    _untangle(columns, wires)
    return Layout(columns=tuple(map(tuple, columns)), wires=tuple(wires))


def _depth_first(successors: Sequence[Sequence[int]]) -> tuple[list[int], set[tuple[int, int]]]:
    """Return vertices in an order in which edges lead on, and the edges that lead back."""
    size = len(successors)
    entered = {end for below in successors for end in below}
    done: list[int] = []
    seen, on_path = [False] * size, [False] * size
    backwards: set[tuple[int, int]] = set()
    for root in sorted(range(size), key=lambda vertex: (vertex in entered, vertex)):
        if seen[root]:
            continue
        path = [(root, iter(successors[root]))]
        seen[root] = on_path[root] = True
        while path:
            vertex, rest = path[-1]
            for end in rest:
                if on_path[end]:
                    backwards.add((vertex, end))
                elif not seen[end]:
                    seen[end] = on_path[end] = True
                    path.append((end, iter(successors[end])))
                    break
            else:
                path.pop()
                on_path[vertex] = False
                done.append(vertex)
    return done[::-1], backwards


def _levels(order: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return of each vertex its column: one behind the last that leads to it."""
    after: dict[int, list[int]] = {}
    for left, right in pairs:
        after.setdefault(left, []).append(right)
    levels = [0] * len(order)
    for vertex in order:
        for right in after.get(vertex, ()):
            levels[right] = max(levels[right], levels[vertex] + 1)
    return levels


def _untangle(columns: list[list[int]], wires: Sequence[Wire]) -> None:
    """Sort each column by what its vertices are joined to, back and forth."""
    neighbours: dict[int, list[int]] = {}
    for wire in wires:
        way = (wire.left, *wire.bends, wire.right)
        for one, other in pairwise(way):
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)
    height: dict[int, float] = {}
    for column in columns:
        _note(column, height)
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            middle = {vertex: _middle(vertex, neighbours, height) for vertex in column}
            column.sort(key=lambda vertex: (middle[vertex], vertex))
            _note(column, height)


def _note(column: Sequence[int], height: dict[int, float]) -> None:
    height.update({vertex: (row + 0.5) / len(column) for row, vertex in enumerate(column)})


def _middle(vertex: int, neighbours: dict[int, list[int]], height: dict[int, float]) -> float:
    around = [height[one] for one in neighbours.get(vertex, ())]
    return sum(around) / len(around) if around else height[vertex]
