"""Failed last runs, one row for each failure cause.

`puppet.fault` on each node makes messages comparable.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard import nodes, run_queries
from localpuppet.web.dashboard.list_query import ListPage, ListQuery
from localpuppet.web.dashboard.run_row import RunRow

_GROUPS = """
SELECT failure_cause, failure, place, count(*) AS number, json_group_array(node),
    group_concat(DISTINCT outcome), count(DISTINCT resource),
    count(DISTINCT substr(resource, 1, instr(resource || '[', '['))),
    substr(max(printf('%020.6f', finished_at) || node), 21),
    ifnull(min(failing_since), min(finished_at)) AS since,
    min(min(finished_at), ifnull(first, 9e999)) AS first,
    max(max(finished_at), ifnull(last, 0)) AS last, count(*) OVER ()
FROM nodes LEFT JOIN (SELECT failure_cause, first, last FROM failures) USING (failure_cause)
WHERE failure_cause != '' AND {} GROUP BY failure_cause
"""
_ORDERS = {"nodes": "number", "error": "failure"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """A failure cause, with the nodes whose last runs it broke.

    Attributes:
        failure_cause: Its key, see `NodeRow.failure_cause`.
        resource: The first failed resource; only its type if the resource differs between nodes.
        release: The release of that run, or empty.
        since: When the first of these nodes began to fail: seconds since 1970.
        first: When it was seen first: seconds since 1970.
        cause: What led to the newest run, or empty.
        worked: The last good run of the newest node; `None` if unknown.
        broke: The release of the first failed run after it; empty if unknown.
    """

    failure_cause: str
    error: str
    resource: str
    place: str
    kinds: Sequence[Kind]
    nodes: Sequence[str]
    newest: tuple[str, str]
    release: str
    since: float
    first: float
    last: float
    cause: str = ""
    worked: RunRow | None = None
    broke: str = ""


def listed(connection: Connection, asked: ListQuery, names: nodes.Names) -> ListPage[FailureGroup]:
    """Return the failure causes of the requested nodes, in order; those of a page with their runs.

    Args:
        names: The nodes that the expression finds; `None` for all.
    """
    some, values = nodes.selected(asked, names, now=0.0)
    order = f"{_ORDERS.get(asked.order, asked.order)}{' DESC' if asked.down else ''}"
    select = f"{_GROUPS.format(some)} ORDER BY {order}, since DESC, failure, place"
    page = ListPage.read(connection, select, values, asked, partial(_group, connection))
    return page if asked.page is None else replace(page, rows=_with_runs(connection, page.rows))


def _group(
    connection: Connection,
    key: str,
    error: str,
    place: str,
    _: int,
    members: str,
    outcomes: str,
    resources: int,
    types: int,
    newest: str,
    *times: float,
) -> FailureGroup:
    row = nodes.of_name(connection, newest) or NodeRow(node=newest)
    since, first, last = times
    resource = row.resource
    if resources > 1:
        resource = f"{resource.partition('[')[0]}[…]" if types == 1 else ""
    return FailureGroup(
        failure_cause=key,
        error=error,
        resource=resource,
        place=place,
        kinds=[kind for kind in Kind if kind in outcomes.split(",")],
        nodes=sorted(loads_again(members.encode())),
        newest=(row.node, row.run),
        release=row.release,
        since=since,
        first=first,
        last=last,
    )


def _with_runs(connection: Connection, groups: Sequence[FailureGroup]) -> Sequence[FailureGroup]:
    """Return failures with what is known of the runs of their newest nodes."""
    worked = run_queries.last_good(connection, [group.newest[0] for group in groups])
    broke = run_queries.first_bad(connection, worked.values())
    causes = run_queries.causes(connection, [group.newest for group in groups])
    return [
        replace(
            group,
            worked=worked.get(group.newest[0]),
            broke=broke[group.newest[0]].release if group.newest[0] in broke else "",
            cause=causes.get(group.newest, ""),
        )
        for group in groups
    ]
