"""Find the entries that a rollout step waits for and that this node does not have yet.

- An entry that names exports counts only when these exports are on this node too, because
  collectors of the step must find them.
- `triggers.steps` limits how long a step waits.
"""

from collections.abc import Callable

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.inventory.outbox import AwaitedEntry, ViewedNode, lacking
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.triggers.cause import RunCause


class AwaitedEntries:
    """Compares the entries that steps wait for with this node's view.

    Args:
        view: This node's copy of the entries, which the agent updates.
        exports: The exports of other nodes that this node has.
        is_current: Returns whether the view is recent enough for queries.
    """

    def __init__(self, view: View, exports: HeldExports, *, is_current: Callable[[], bool]) -> None:
        self._view = view
        self._exports = exports
        self._is_current = is_current
        self._known: dict[NodeName, ViewedNode] = {}  # an older entry is unpacked once

    def come(self) -> bool:
        """Return whether this node receives entries; the bus may deny it read access.

        A node without read access compiles its catalog without entries, so it must not wait for
        them.
        """
        try:
            return self._is_current()
        except StateError:
            return False  # the node's own queries report this error

    def lacking(self, cause: RunCause) -> str:
        """Return the missing entries as one line, empty if none is missing."""
        try:
            return self._lacking(cause)
        except StateError as error:
            return f"any node: {error}"  # the agent rebuilds the view from the bus

    def _lacking(self, cause: RunCause) -> str:
        standing = self._view.standing([entry.node for entry in cause.awaited_entries])
        exports = {
            node: entry.exports for node, entry in standing.items() if entry.exports is not None
        }
        coming = self._exports.missing(exports)
        seen = {
            entry.node: self._seen(entry, at)
            for entry in cause.awaited_entries
            if (at := standing[entry.node].at) is not None and entry.node not in coming
        }
        refused = {node: entry.refused for node, entry in standing.items() if entry.refused}
        return lacking(cause.awaited_entries, seen, refused)

    def _seen(self, awaited: AwaitedEntry, at: float) -> ViewedNode:
        if at >= awaited.at:
            return ViewedNode(digest="", at=at)
        before = self._known.get(awaited.node)
        if before is None or before.at != at:
            entry = self._view.entry(awaited.node)
            before = ViewedNode(digest="" if entry is None else entry.digest, at=at)
            self._known[awaited.node] = before
        return before
