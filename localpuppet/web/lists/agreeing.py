"""Which nodes do not run what they should: other bytes than the rest, or not what their input says.

Owns: when a node disagrees with its release. Refuses to know: HTML, releases on a disk.

A tag is the same everywhere. Where nodes name one release and have other bytes of it, those with
the bytes that fewer have disagree; all of them where no bytes are those of most.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from localpuppet.web.row import Row

SHORT = 12
_IMMUTABLE = "/tags/"


def disagreeing(rows: Iterable[Row]) -> Mapping[str, str]:
    """Return the nodes that disagree with their releases, each with why.

    Args:
        rows: Of all nodes.
    """
    found: dict[str, str] = {}
    by_app: dict[str, list[Row]] = {}
    for row in rows:
        if row.wanted and row.wanted != row.app:
            found[row.node] = f"a rollback is in force; its input names {row.wanted}"
        elif _IMMUTABLE in row.app and row.digest:
            by_app.setdefault(row.app, []).append(row)
    for group in by_app.values():
        usual = _usual(group)
        for row in group:
            if row.digest != usual:
                most = f"; most nodes have {usual[:SHORT]}" if usual else ", and nodes differ"
                found[row.node] = f"its {row.app} is {row.digest[:SHORT]}{most}"
    return found


def _usual(group: list[Row]) -> str:
    """Return the digest that most have; empty where no digest is that."""
    counts = Counter(row.digest for row in group).most_common(2)
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        return ""
    return counts[0][0]
