"""The nodes, indexed for lists: sorted in each order, grouped, and counted.

Reading costs by the size of the result, and a change by what changed; neither scans all nodes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from localpuppet.fleet.inventory.node_row import (
    LATE_SEVERITY,
    NODE_ORDERS,
    NOT_TRUSTED,
    UNRESPONSIVE,
    NodeRow,
    is_older,
)
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.lists.agreement import Agreement
from localpuppet.web.dashboard.lists.ordered import Ordered
from localpuppet.web.dashboard.lists.tally import Tally


class NodeStandings:
    """All nodes.

    Args:
        rows: The first rows.

    Attributes:
        rows: Node → its row; read-only.
        kinds: Counts of nodes by the result of their last run.
        states: Counts of nodes by state.
        tallies: Release of the last run → the nodes that ran it; key empty for runs without a
            release.
        failure_causes: `NodeRow.failure_cause` → the nodes whose last run it broke.
        held: The nodes on hold, including those with an allowed run.
    """

    def __init__(self, rows: Iterable[NodeRow] = ()) -> None:
        self.rows: dict[str, NodeRow] = {}
        self.kinds: Counter[Kind] = Counter()
        self.states: Counter[str] = Counter()
        self.tallies: dict[str, Tally] = {}
        self.failure_causes: dict[str, set[str]] = {}
        self._orders = {order: Ordered() for order in NODE_ORDERS}
        self.held: set[str] = set()
        self._late = Ordered()
        self._agreement = Agreement()
        for row in rows:
            self.put(row)

    def put(self, row: NodeRow) -> bool:
        """Add or update a node.

        Returns:
            Whether anything changed that a list shows.
        """
        before = self.rows.get(row.node)
        self.rows[row.node] = row
        if before is not None:
            if replace(before, received_at=row.received_at) == row:
                return False
            self._remove(before)
        self._add(row)
        return True

    def forget(self, name: str) -> None:
        """Remove a node."""
        self._remove(self.rows.pop(name))

    def some(self, names: Collection[str] | None) -> Collection[NodeRow]:
        """Return the rows of known nodes among names; all for `None`."""
        if names is None:
            return self.rows.values()
        return [self.rows[name] for name in names if name in self.rows]

    def sorted(self, order: str, *, down: bool, now: float) -> list[NodeRow]:
        """Return all rows in one of the orders of `NODE_ORDERS`; equal ones by name.

        Args:
            order: The order; `severity` is that of `NodeRow.severity`.
            down: Whether it is descending.
            now: Seconds since 1970, UTC.
        """
        if order != "severity":
            return [self.rows[name] for name in self._orders[order].names(down=down)]
        late = set(self.late(now))
        before: list[str] = []
        after: list[str] = []
        moved: list[str] = []
        for name in self._orders[order].names(down=down):
            if self.rows[name].severity_in_time <= LATE_SEVERITY:
                before.append(name)
            else:
                (moved if name in late else after).append(name)
        parts = (after, sorted(moved), before) if down else (before, sorted(moved), after)
        return [self.rows[name] for part in parts for name in part]

    def with_key(self, order: str, key: Any) -> Collection[str]:  # noqa: ANN401 - as it sorts
        """Return the nodes with a key in an order."""
        return self._orders[order].of(key)

    def with_kind(self, kind: Kind) -> Collection[str]:
        """Return the nodes whose last run had a result."""
        return self._orders["outcome"].of(kind.place)

    @property
    def strangers(self) -> Collection[str]:
        """The nodes that are not trusted."""
        return self._orders["state"].of(NOT_TRUSTED)

    @property
    def unresponsive(self) -> Collection[str]:
        """The nodes without a running agent."""
        return self._orders["state"].of(UNRESPONSIVE)

    def older(self, than: str) -> Collection[str]:
        """Return the nodes whose last run applied an older release; see `is_older`."""
        return [
            name
            for release, tally in self.tallies.items()
            if is_older(release, than)
            for name in tally.nodes
        ]

    def late(self, now: float) -> Collection[str]:
        """Return the nodes that should have run by now; see `NodeRow.late`."""
        return self._late.below(now)

    def wrong_releases(self) -> Mapping[str, str]:
        """Return the nodes with a wrong release, each with the reason."""
        return self._agreement.wrong_releases()

    def rolled_back(self) -> Mapping[str, str]:
        """Return the nodes that run an earlier release by a decision, each with the decision."""
        return self._agreement.rolled_back()

    def _add(self, row: NodeRow) -> None:
        self.kinds[row.outcome] += 1
        self.states[row.state] += 1
        for order, key in NODE_ORDERS.items():
            self._orders[order].add(key(row), row.node)
        if has_run(row):
            self.tallies.setdefault(row.release, Tally()).add(row)
        if cause := row.failure_cause:
            self.failure_causes.setdefault(cause, set()).add(row.node)
        if row.is_held:
            self.held.add(row.node)
        if (since := row.late_from) is not None:
            self._late.add(since, row.node)
        self._agreement.add(row)

    def _remove(self, row: NodeRow) -> None:
        self.kinds[row.outcome] -= 1
        self.states[row.state] -= 1
        for order, key in NODE_ORDERS.items():
            self._orders[order].remove(key(row), row.node)
        if has_run(row):
            tally = self.tallies[row.release]
            tally.remove(row)
            if not tally.nodes:
                del self.tallies[row.release]
        if cause := row.failure_cause:
            self.failure_causes[cause].remove(row.node)
            if not self.failure_causes[cause]:
                del self.failure_causes[cause]
        self.held.discard(row.node)
        if (since := row.late_from) is not None:
            self._late.remove(since, row.node)
        self._agreement.remove(row)


def has_run(row: NodeRow) -> bool:
    """Return whether a node has a known last run."""
    return row.last is not None
