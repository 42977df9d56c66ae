"""Which entries a step of a rollout waits for that this node does not have yet.

Owns: what of this node's view, and of the exports that it holds, is asked for that. Refuses to
know: how long a step waits (`triggers.steps`).

An entry that names exports is there when these are: who collects them is to find them.
"""

from collections.abc import Mapping
from typing import Protocol

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.inventory.awaited import Awaited, Seen, lacking
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.triggers.cause import Cause


class Exports(Protocol):
    """What this node holds of others' exports."""

    def missing(self, wanted: Mapping[NodeName, str]) -> set[NodeName]:
        """Return the nodes whose exports, of these digests, have not come here."""
        ...


class AwaitedEntries:
    """What is looked at for steps that wait.

    Args:
        view: This node's copy of what the others said; an agent keeps it.
        exports: What it holds of what they export.
        clock: The node's clock.
        max_stale: Seconds for which the view counts after it was last current.
    """

    def __init__(self, view: View, exports: Exports, *, clock: Clock, max_stale: float) -> None:
        self._view = view
        self._exports = exports
        self._clock = clock
        self._max_stale = max_stale
        self._known: dict[NodeName, Seen] = {}  # an older entry is unpacked once

    def come(self) -> bool:
        """Return whether entries come to this node at all: the bus may not let it read them.

        What it does not read its catalog does not know either, and to wait for it is in vain.
        """
        try:
            current = self._view.current_until()
        except StateError:
            return False  # its questions fail by themselves
        now = self._clock.now().timestamp()
        return current is not None and now - current <= self._max_stale

    def lacking(self, cause: Cause) -> str:
        """Return which entries are not here yet, one line; empty where all are."""
        try:
            return self._lacking(cause)
        except StateError as error:
            return f"any node: {error}"  # the agent makes it anew from the bus

    def _lacking(self, cause: Cause) -> str:
        standing = self._view.standing([one.node for one in cause.after])
        exports = {node: one.exports for node, one in standing.items() if one.exports is not None}
        coming = self._exports.missing(exports)
        seen = {
            one.node: self._seen(one, at)
            for one in cause.after
            if (at := standing[one.node].at) is not None and one.node not in coming
        }
        refused = {node: one.refused for node, one in standing.items() if one.refused}
        return lacking(cause.after, seen, refused)

    def _seen(self, awaited: Awaited, at: float) -> Seen:
        if at >= awaited.at:
            return Seen(digest="", at=at)
        before = self._known.get(awaited.node)
        if before is None or before.at != at:
            entry = self._view.entry(awaited.node)
            before = Seen(digest="" if entry is None else entry.digest, at=at)
            self._known[awaited.node] = before
        return before
