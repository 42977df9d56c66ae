"""Resources that runs corrected, by node and by resource."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from localpuppet.base.machine.sqlite import Connection
from localpuppet.web.dashboard.list_query import PAGE, ListPage, ListQuery
from localpuppet.web.dashboard.nodes import Names
from localpuppet.web.dashboard.tables.run_queries import NodeDrift, drifting

DAYS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftGroup:
    """What drifts on a node, or the nodes on which a resource drifts.

    Attributes:
        name: The node, or the resource.
        place: File and line of the resource's declaration, or empty.
        count: How often it was corrected.
        others: The resources of the node, or the nodes of the resource, those most often first.
        newest: The last correction.
    """

    name: str
    place: str
    count: int
    others: Sequence[str]
    newest: NodeDrift


def listed(
    connection: Connection, asked: ListQuery, names: Names, *, today: int
) -> ListPage[NodeDrift]:
    """Return all that drifts on the requested nodes; a page shows it in groups."""
    rows = [
        row
        for row in drifting(connection, since=today - DAYS)
        if asked.name in row.node and (names is None or row.node in names)
    ]
    rows.sort(key=lambda row: getattr(row, asked.sort), reverse=asked.down)
    return ListPage.of(rows, None)


def drift_groups(rows: Sequence[NodeDrift]) -> tuple[Sequence[DriftGroup], Sequence[DriftGroup]]:
    """Return what drifts by node and by resource, each at most `PAGE`, the most often first."""
    by_node = _grouped(rows, lambda row: (row.node, ""), lambda row: row.resource)
    by_resource = _grouped(rows, lambda row: (row.resource, row.place), lambda row: row.node)
    return by_node[:PAGE], by_resource[:PAGE]


def _grouped(
    rows: Iterable[NodeDrift],
    key: Callable[[NodeDrift], tuple[str, str]],
    other: Callable[[NodeDrift], str],
) -> list[DriftGroup]:
    groups: dict[tuple[str, str], list[NodeDrift]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    all_groups = [
        DriftGroup(
            name=name,
            place=place,
            count=sum(member.count for member in members),
            others=[other(member) for member in members],
            newest=max(members, key=lambda member: member.last),
        )
        for (name, place), members in groups.items()
    ]
    return sorted(all_groups, key=lambda group: (-group.count, group.name))
