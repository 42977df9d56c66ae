"""The nodes, indexed for lists: sorted in each order, grouped, and counted.

A tag is the same everywhere. If nodes have different bytes of one release, those with the less
common bytes are wrong; all of them if no bytes are the most common. A rollback is a decision: the
node has the release that it should have, which is not its input's.

A change costs the logarithm of the number of names (and moves the end of one list). Names with
equal keys are sorted by name in both directions.

Reading costs by the size of the result, and a change by what changed; neither scans all nodes.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

SHORT = 12
_IMMUTABLE = "/tags/"


class Agreement:
    """The nodes with such a release, kept up to date; reading costs by their number."""

    def __init__(self) -> None:
        self._back: dict[str, NodeRow] = {}
        self._bytes: dict[str, dict[str, set[str]]] = {}  # release → digest → nodes

    def add(self, row: NodeRow) -> None:
        """Add a node."""
        if row.input_release and row.input_release != row.release:
            self._back[row.node] = row
        elif _IMMUTABLE in row.release and row.release_digest:
            self._bytes.setdefault(row.release, {}).setdefault(row.release_digest, set()).add(
                row.node
            )

    def remove(self, row: NodeRow) -> None:
        """Remove a node, with the row with which it was added."""
        self._back.pop(row.node, None)
        digests = self._bytes.get(row.release, {})
        nodes = digests.get(row.release_digest, set())
        nodes.discard(row.node)
        if not nodes:
            digests.pop(row.release_digest, None)
        if not digests:
            self._bytes.pop(row.release, None)

    def wrong_releases(self) -> Mapping[str, str]:
        """Return the nodes with a wrong release, each with the reason."""
        reasons: dict[str, str] = {}
        for app, digests in self._bytes.items():
            usual = _usual(digests)
            most = f"; most nodes have {usual[:SHORT]}" if usual else ", and nodes differ"
            for digest in digests.keys() - {usual}:
                why = f"its {app} is {digest[:SHORT]}{most}"
                reasons |= dict.fromkeys(digests[digest], why)
        return reasons

    def rolled_back(self) -> Mapping[str, str]:
        """Return the nodes that run an earlier release by a decision, each with the decision."""
        return {node: _decision(row) for node, row in self._back.items()}


def _decision(row: NodeRow) -> str:
    user = f" by {row.rolled_back_by}" if row.rolled_back_by else ""
    to = f" to {row.release}" if row.release else ""
    named = f"{row.assigned_by} assigned" if row.assigned_by else "its input names"
    return f"rolled back{user}{to}; {named} {row.input_release}"


def _usual(digests: Mapping[str, set[str]]) -> str:
    """Return the most common digest; empty without one."""
    most = max(map(len, digests.values()))
    usual = [digest for digest, nodes in digests.items() if len(nodes) == most]
    return usual[0] if len(usual) == 1 else ""


class Ordered:
    """Names by a key; all keys of one order can be compared."""

    def __init__(self) -> None:
        self._keys: list[Any] = []
        self._names: dict[Any, list[str]] = {}

    def add(self, key: Any, name: str) -> None:  # noqa: ANN401 - whatever can be compared
        """Add a new name."""
        names = self._names.get(key)
        if names is not None:
            insort(names, name)
            return
        self._names[key] = [name]
        insort(self._keys, key)

    def remove(self, key: Any, name: str) -> None:  # noqa: ANN401 - as for `add`
        """Remove an existing name."""
        names = self._names[key]
        del names[bisect_left(names, name)]
        if not names:
            del self._names[key]
            del self._keys[bisect_left(self._keys, key)]

    def of(self, key: Any) -> Sequence[str]:  # noqa: ANN401 - as for `add`
        """Return the names that have a key, in order."""
        return self._names.get(key, ())

    def names(self, *, down: bool = False) -> Iterator[str]:
        """Yield all names; those of the highest key first if `down`."""
        for key in reversed(self._keys) if down else self._keys:
            yield from self._names[key]

    def below(self, key: Any) -> list[str]:  # noqa: ANN401 - as for `add`
        """Return the names whose keys are lower than one."""
        lower = self._keys[: bisect_left(self._keys, key)]
        return [name for lower_key in lower for name in self._names[lower_key]]


class Tally:
    """Counts of nodes.

    Attributes:
        nodes: Their names, sorted.
        kinds: Counts of their last runs by result.
        digests: Counts of nodes by digest.
    """

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.kinds: Counter[Kind] = Counter()
        self.digests: Counter[str] = Counter()
        self._ends: list[float] = []

    @property
    def last(self) -> float | None:
        """The end of the last of their runs, seconds since 1970, or `None`."""
        return self._ends[-1] if self._ends else None

    def add(self, row: NodeRow) -> None:
        """Count a node."""
        insort(self.nodes, row.node)
        self.kinds[row.outcome] += 1
        if row.release_digest:
            self.digests[row.release_digest] += 1
        if row.finished_at is not None:
            insort(self._ends, row.finished_at)

    def remove(self, row: NodeRow) -> None:
        """Remove a node from the counts, with the row with which it was added."""
        del self.nodes[bisect_left(self.nodes, row.node)]
        self.kinds[row.outcome] -= 1
        if row.release_digest:
            self.digests[row.release_digest] -= 1
            if not self.digests[row.release_digest]:
                del self.digests[
                    row.release_digest
                ]  # a node with ever new digests does not fill the memory
        if row.finished_at is not None:
            del self._ends[bisect_left(self._ends, row.finished_at)]


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
