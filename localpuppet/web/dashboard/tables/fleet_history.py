"""The history of the fleet, as the dashboard's views read it from the memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from sqlite3 import Connection

from localpuppet.fleet.inventory.run_kind import Kind
from localpuppet.web.dashboard.run_results import RunResult
from localpuppet.web.dashboard.tables import audit_table, run_queries
from localpuppet.web.dashboard.tables.audit_table import AuditFilter, NodeAuditRecord
from localpuppet.web.dashboard.tables.run_queries import NodeDrift, RunFilter
from localpuppet.web.dashboard.tables.run_table import GOOD_KINDS


@dataclass(frozen=True, slots=True)
class FleetHistory:
    """Answers questions; each of them reads the file, so it belongs in a thread.

    Attributes:
        snapshot: Lends a connection that sees no later write.
    """

    snapshot: Callable[[], AbstractContextManager[Connection]]

    def runs(self, asked: RunFilter, *, limit: int) -> list[RunResult]:
        """Return runs of many nodes; see `run_queries.matching`."""
        with self.snapshot() as connection:
            return run_queries.matching(connection, asked, limit=limit)

    def with_resources(self, runs: Iterable[RunResult]) -> list[RunResult]:
        """Return runs with their resources."""
        with self.snapshot() as connection:
            return run_queries.with_resources(connection, runs)

    def last_good(self, nodes: Iterable[str]) -> Mapping[str, RunResult]:
        """Return the last run of each node that was no failure and no noop run, if there is one."""
        with self.snapshot() as connection:
            runs = [
                run_queries.of_node(connection, node, limit=1, kinds=GOOD_KINDS) for node in nodes
            ]
        return {run.node: run for of_day in runs for run in of_day}

    def first_of_release(self, release: str) -> float | None:
        """Return when a release ran first; see `run_queries.first_of_release`."""
        with self.snapshot() as connection:
            return run_queries.first_of_release(connection, release)

    def days(self, node: str, days: Sequence[int]) -> Mapping[tuple[int, Kind], int]:
        """Return counts of a node's runs; see `run_queries.days_of`."""
        with self.snapshot() as connection:
            return run_queries.days_of(connection, node, days)

    def drift(self, *, since: int) -> list[NodeDrift]:
        """Return resources that runs corrected; see `run_queries.drifting`."""
        with self.snapshot() as connection:
            return run_queries.drifting(connection, since=since)

    def audit(self, wanted: AuditFilter, *, limit: int) -> list[NodeAuditRecord]:
        """Return requests that nodes decided, the newest first; see `audit_table.audit`."""
        with self.snapshot() as connection:
            return audit_table.audit(connection, wanted, limit=limit)
