"""The map of the fleet: a cell a node, in groups, the most urgent first."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import CHANGED
from localpuppet.web.dashboard.lists.list_query import ListQuery

# Cells of all groups together, and of one at least; the rest of a group is a number.
MOST_CELLS, FEWEST = 3_000, 20
# Groups, the largest.
MOST_GROUPS = 100
ROLE = "role"
# Word and class by `NodeRow.severity`; the style sheet has a letter for each class.
_LOOKS = (
    ("failed", "failed"),
    ("unresponsive", "unresponsive"),
    ("not trusted", "not-trusted"),
    ("late", "late"),
    ("on hold", "on-hold"),
    ("no good run", "pending"),
    ("good", "unchanged"),
)
_CHANGED = "changed", "changed"
LOOKS = (*_LOOKS[:-1], _CHANGED, _LOOKS[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCell:
    """A node.

    Attributes:
        node: Its name.
        word: Its state.
        style: The same as a class.
    """

    node: str
    word: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellGroup:
    """Nodes with something in common.

    Attributes:
        name: The role or the value of the fact.
        total: The number of nodes.
        counts: Nodes by state, in order of urgency.
        cells: Some of them, the most urgent first.
        url: The list of the nodes, or empty.
    """

    name: str
    total: int
    counts: Sequence[tuple[str, int]]
    cells: Sequence[NodeCell]
    url: str


def heat_map(
    rows: Iterable[NodeRow], *, by: str, name_of: Callable[[NodeRow], str], now: float
) -> Sequence[CellGroup]:
    """Return the groups, sorted by name; at most `MOST_GROUPS`, the largest.

    Args:
        rows: The nodes.
        by: `ROLE`, or the path of a fact.
        name_of: Returns the group of a node; empty for none.
        now: Seconds since 1970, UTC.
    """
    groups: dict[str, list[tuple[int, str, NodeCell]]] = {}
    for row in rows:
        severity = row.severity(now)
        changed = severity == len(_LOOKS) - 1 and row.outcome.part == CHANGED
        word, style = _CHANGED if changed else _LOOKS[severity]
        cell = NodeCell(node=row.node, word=word, style=style)
        groups.setdefault(name_of(row), []).append((2 * severity - changed, row.node, cell))
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:MOST_GROUPS]
    total = sum(len(groups[name]) for name in largest)
    return [_group(name, groups[name], by, total) for name in sorted(largest)]


def role_of(row: NodeRow) -> str:
    """Return the roles of a node as the name of a group."""
    return ", ".join(row.roles)


def _group(name: str, members: list[tuple[int, str, NodeCell]], by: str, total: int) -> CellGroup:
    members.sort(key=lambda cell: cell[:2])
    counts = Counter(cell.word for _, _, cell in members)
    room = max(FEWEST, MOST_CELLS * len(members) // max(MOST_CELLS, total))
    single = name and not (by == ROLE and ", " in name) and '"' not in name
    return CellGroup(
        name=name,
        total=len(members),
        counts=[(word, counts[word]) for word, _ in LOOKS if counts[word]],
        cells=[cell for _, _, cell in members[:room]],
        url=ListQuery(q=f'{by}="{name}"').url if single else "",
    )
