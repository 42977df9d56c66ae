"""Which nodes do not run what they should: other bytes than the rest, or not what their input says.

Owns: when a node disagrees with its release. Refuses to know: HTML, releases on a disk.

A tag is the same everywhere. Where nodes name one release and have other bytes of it, those with
the bytes that fewer have disagree; all of them where no bytes are those of most.
"""

from collections.abc import Mapping

from localpuppet.web.dashboard.row import Row

SHORT = 12
_IMMUTABLE = "/tags/"


class Agreement:
    """Who disagrees, of nodes that come, change and go: asking costs by those who do."""

    def __init__(self) -> None:
        self._back: dict[str, str] = {}  # node → what its input names
        self._bytes: dict[str, dict[str, set[str]]] = {}  # release → digest → nodes

    def add(self, row: Row) -> None:
        """Take a node in."""
        if row.wanted and row.wanted != row.app:
            self._back[row.node] = row.wanted
        elif _IMMUTABLE in row.app and row.digest:
            self._bytes.setdefault(row.app, {}).setdefault(row.digest, set()).add(row.node)

    def remove(self, row: Row) -> None:
        """Take a node out, as it was when it was taken in."""
        self._back.pop(row.node, None)
        digests = self._bytes.get(row.app, {})
        nodes = digests.get(row.digest, set())
        nodes.discard(row.node)
        if not nodes:
            digests.pop(row.digest, None)
        if not digests:
            self._bytes.pop(row.app, None)

    def disagreeing(self) -> Mapping[str, str]:
        """Return the nodes that disagree with their releases, each with why."""
        found = {
            node: f"a rollback is in force; its input names {wanted}"
            for node, wanted in self._back.items()
        }
        for app, digests in self._bytes.items():
            usual = _usual(digests)
            most = f"; most nodes have {usual[:SHORT]}" if usual else ", and nodes differ"
            for digest in digests.keys() - {usual}:
                why = f"its {app} is {digest[:SHORT]}{most}"
                found |= dict.fromkeys(digests[digest], why)
        return found


def _usual(digests: Mapping[str, set[str]]) -> str:
    """Return the digest that most have; empty where no digest is that."""
    most = max(map(len, digests.values()))
    usual = [digest for digest, nodes in digests.items() if len(nodes) == most]
    return usual[0] if len(usual) == 1 else ""
