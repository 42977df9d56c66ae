"""Finds nodes with a wrong release, and nodes that were rolled back.

A tag is the same everywhere. If nodes have different bytes of one release, those with the less
common bytes are wrong; all of them if no bytes are the most common. A rollback is a decision: the
node has the release that it should have, which is not its input's.
"""

from collections.abc import Mapping

from localpuppet.fleet.inventory.node_row import NodeRow

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
