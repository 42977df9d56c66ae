"""What is wrong in the fleet now: SELECTs over the rows that all views of the dashboard show.

`NodeRow` alone decides what is late, failed or on hold; nothing is decided again here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.history.history_records import DAY, day_of
from localpuppet.fleet.inventory.node_row import LATE, NOT_TRUSTED, UNRESPONSIVE, WRONG_RELEASE
from localpuppet.rollout.events import RolloutEnding
from localpuppet.rollout.rollout_report import PAUSED
from localpuppet.web.dashboard.nodes import CONCERNS
from localpuppet.web.dashboard.rollouts import RolloutRow, active_rollouts
from localpuppet.web.dashboard.run_queries import drifting
from localpuppet.web.notify.incidents import Condition, IncidentKind

MAX_TEXT = 300
# Conditions of all kinds together: a compromised node can invent a failure cause for each run.
MOST = 200
# Runs within a week that correct a resource on one node before that is drift, the last within a
# day: a resource that is no longer corrected is no incident.
CORRECTIONS, WEEK = 3, 7
# Seconds before the end of a certificate.
EXPIRES_IN = 14 * DAY
FAILED = RolloutEnding.FAILED
_FAILED = """
SELECT failure_cause, release, failure, place, json_group_array(node) FROM nodes
WHERE failure_cause != '' GROUP BY failure_cause, release ORDER BY count(*) DESC, 1, 2 LIMIT ?
"""
_STATES = {
    IncidentKind.LATE: (LATE, CONCERNS[LATE]),
    IncidentKind.UNRESPONSIVE: (UNRESPONSIVE, f"state = '{UNRESPONSIVE}'"),
    IncidentKind.NOT_TRUSTED: (NOT_TRUSTED, f"state = '{NOT_TRUSTED}'"),
}


def of_nodes(connection: Connection, *, now: float) -> list[Condition]:
    """Return what is wrong with nodes; `now` is in seconds since 1970, UTC."""
    found = [
        _condition(
            IncidentKind.FAILED,
            f"{cause}:{release}",
            release=release,
            detail=f"{failure} ({place})" if place else failure,
            nodes=_sorted(nodes),
            page=f"/nodes?failure_cause={quote(cause)}",
        )
        for cause, release, failure, place, nodes in connection.execute(_FAILED, (MOST,))
    ]
    for kind, (word, condition) in _STATES.items():
        (nodes,) = connection.execute(
            f"SELECT json_group_array(node) FROM nodes WHERE {condition}",  # noqa: S608
            {"now": now},
        ).fetchone()
        if names := _sorted(nodes):
            page = f"/nodes?is={quote(word)}"
            found.append(Condition(key=kind, kind=kind, nodes=names, page=page))
    found += [
        _condition(
            IncidentKind.WRONG_RELEASE,
            release,
            release=release,
            nodes=_sorted(nodes),
            page=f"/nodes?is={quote(WRONG_RELEASE)}",
        )
        for release, nodes in connection.execute(
            "SELECT release, json_group_array(node) FROM wrong GROUP BY release"
        )
    ]
    return found


def of_drift(connection: Connection, *, now: float) -> list[Condition]:
    """Return the resources that Puppet keeps correcting; it reads the runs of a week."""
    by_resource: dict[str, set[str]] = {}
    for row in drifting(connection, since=day_of(now) - WEEK):
        if row.count >= CORRECTIONS and row.last > now - DAY:
            by_resource.setdefault(row.resource, set()).add(row.node)
    return [
        _condition(
            IncidentKind.DRIFT,
            resource,
            subject=shortened(resource, MAX_TEXT),
            nodes=tuple(sorted(nodes)),
            page="/drift",
        )
        for resource, nodes in by_resource.items()
    ]


def of_rollouts(rows: Sequence[RolloutRow], *, now: float) -> Iterator[Condition]:
    """Yield the rollouts that wait for a person, failed, or left nodes without their change."""
    failed = [row for row in rows if row.state == FAILED and (row.finished_at or 0) > now - DAY]
    halfway = [row for row in active_rollouts(rows, {}, now=now) if row.is_halfway]
    waiting = [row for row in rows if row.state == PAUSED]
    for row in {row.id: row for row in (*failed, *halfway, *waiting)}.values():
        yield _condition(
            IncidentKind.ROLLOUT,
            f"{row.id}:{row.state}",
            subject=f"{row.id} is {row.state}",
            release=row.release,
            detail=row.reason,
            page=f"/rollouts/{row.id}",
        )


def of_certificates(ends: Mapping[str, float], *, now: float) -> Iterator[Condition]:
    """Yield the certificates that end soon; `ends` are their names with seconds since 1970."""
    for name, end in ends.items():
        if end < now + EXPIRES_IN:
            detail = f"on {show_epoch(end)}"
            yield _condition(IncidentKind.EXPIRY, f"{name}:{end}", subject=name, detail=detail)


def of_node_certificates(ends: Mapping[str, float | None], *, now: float) -> Iterator[Condition]:
    """Yield the nodes whose certificates end soon; `ends` are in seconds since 1970, by node."""
    soon = {node: end for node, end in ends.items() if end is not None and end < now + EXPIRES_IN}
    if soon:
        yield _condition(
            IncidentKind.EXPIRY,
            "nodes",
            detail=f"the first on {show_epoch(min(soon.values()))}",
            nodes=tuple(sorted(soon)),
            page="/nodes",
        )


def by_key(conditions: Iterable[Condition]) -> dict[str, Condition]:
    """Return conditions by key; of too many those of the most nodes."""
    most = sorted(conditions, key=lambda one: (-one.kind.severity.place, -len(one.nodes), one.key))
    return {one.key: one for one in most[:MOST]}


def blindness(away: str, *, is_full: bool, unsaved: str) -> Condition | None:
    """Return why the fleet cannot be seen; `None` if it can."""
    if not (away or unsaved):
        return None
    subject = "the bus has no room" if is_full else "the bus is unreachable"
    if not away:
        subject = "the dashboard cannot store results"
    return Condition(
        key=IncidentKind.BUS,
        kind=IncidentKind.BUS,
        subject=subject,
        detail=shortened(away or unsaved, MAX_TEXT),
    )


def _condition(kind: IncidentKind, key: str, /, detail: str = "", **fields: Any) -> Condition:  # noqa: ANN401 - fields of the class
    return Condition(key=f"{kind}:{key}", kind=kind, detail=shortened(detail, MAX_TEXT), **fields)


def _sorted(names: str) -> tuple[str, ...]:
    return tuple(sorted(loads_again(names.encode())))
