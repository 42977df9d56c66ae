"""Counts the nodes whose last run applied one release, updated as each node changes."""

from bisect import bisect_left, insort
from collections import Counter

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind


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
