"""Failed last runs, one row for each failure cause.

`puppet.fault` on each node makes messages comparable.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.lists.list_query import ListQuery
from localpuppet.web.dashboard.lists.node_standings import NodeStandings
from localpuppet.web.dashboard.run_results import RunResult

# When a failure was seen first and last: seconds since 1970.
Seen = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """A failure cause, with the nodes whose last runs it broke.

    Attributes:
        failure_cause: Its key, see `NodeRow.failure_cause`.
        error: The message.
        resource: The first failed resource; only its type if the resource differs between nodes.
        place: File and line.
        kinds: The results of the runs.
        nodes: The nodes, sorted.
        newest: The node whose run ended last, and that run.
        release: The release of that run, or empty.
        since: When the first of these nodes began to fail: seconds since 1970.
        first: When it was seen first: seconds since 1970.
        last: When it was seen last.
        cause: What led to the newest run, or empty.
        worked: The last good run of the newest node; `None` if unknown.
        broke: The release of the first failed run after it; empty if unknown.
    """

    failure_cause: str
    error: str
    resource: str
    place: str
    kinds: tuple[Kind, ...]
    nodes: tuple[str, ...]
    newest: tuple[str, str]
    release: str
    since: float
    first: float
    last: float
    cause: str = ""
    worked: RunResult | None = None
    broke: str = ""


def failures(
    standing: NodeStandings, asked: ListQuery, *, names: Collection[str] | None, seen: Seen
) -> list[FailureGroup]:
    """Return the failure causes of the requested nodes, in order.

    Args:
        standing: All nodes.
        asked: The request.
        names: The nodes that the expression finds; `None` for all.
        seen: When each failure was seen.
    """
    groups = []
    for cause, nodes in standing.failure_causes.items():
        group = [
            row
            for row in standing.some(nodes)
            if (names is None or row.node in names)
            and asked.name in row.node
            and asked.outcome in (None, row.outcome)
        ]
        if group:
            groups.append(_failure(cause, group, seen.get(cause)))
    groups.sort(key=lambda item: (-item.since, item.error, item.place))
    groups.sort(key=lambda item: _key(item, asked.sort), reverse=asked.down)
    return groups


def _failure(cause: str, group: list[NodeRow], seen: tuple[float, float] | None) -> FailureGroup:
    newest = max(group, key=lambda row: (row.finished_at or 0.0, row.node))
    ends = [row.finished_at for row in group if row.finished_at is not None] or [0.0]
    resources, kinds = {row.resource for row in group}, {row.outcome for row in group}
    types = {resource.partition("[")[0] for resource in resources}
    resource = newest.resource
    if len(resources) > 1:
        resource = f"{types.pop()}[…]" if len(types) == 1 else ""
    return FailureGroup(
        failure_cause=cause,
        error=newest.failure,
        resource=resource,
        place=newest.place,
        kinds=tuple(kind for kind in Kind if kind in kinds),
        nodes=tuple(sorted(row.node for row in group)),
        newest=(newest.node, newest.run),
        release=newest.release,
        since=min([row.failing_since for row in group if row.failing_since] or ends),
        first=min(*ends, seen[0]) if seen else min(ends),
        last=max(*ends, seen[1]) if seen else max(ends),
    )


def _key(group: FailureGroup, order: str) -> Any:  # noqa: ANN401 - whatever can be compared
    return len(group.nodes) if order == "nodes" else getattr(group, order)
