"""What nodes of a played site published about the past: runs and requests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from localpuppet.fleet.history.audit_record import AuditRecord
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.nodes import listed, of_name
from localpuppet.web.dashboard.run_row import RunRow
from tests.fleet.make import a_part
from tests.web.dashboard.site import Site, run_id

MOTD = a_part(
    "File[/etc/motd]",
    file="profile/manifests/motd.pp",
    line=3,
    status=ResourceResult.CHANGED,
)


def summary(node: str, at: float, **more: Any) -> RunRow:
    """Return a run of a run summary; `more` are its fields."""
    run = RunRow(
        node=node,
        run=run_id(at),
        at=at,
        outcome=Kind.UNCHANGED,
        release="web/tags/r7",
        reason="",
        cause="timer",
        seconds=20,
    )
    return replace(run, **more)


def keep(
    memory: DashboardStore,
    *rows: NodeRow,
    gone: Iterable[str] = (),
    last_updated: float | None = None,
) -> None:
    """Write nodes as they are now, and forget some."""
    with memory.changing(last_updated=last_updated) as table:
        for row in rows:
            table.put(row, of_name(table.connection, row.node))
        for name in gone:
            table.forget(name)


def kept(memory: DashboardStore) -> list[NodeRow]:
    """Return the nodes that were written, by name."""
    return list(memory.read(listed, ListQuery().whole, None, now=0.0).rows)


def summarise(
    site: Site, *runs: RunRow, audit: Mapping[str, Sequence[AuditRecord]] | None = None
) -> None:
    """Have nodes publish run summaries, and requests that they decided, by node."""
    site.memory.write_history(runs, (audit or {}).items())
