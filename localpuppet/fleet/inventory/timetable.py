"""When the periodic runs of a node begin, and from when a node is late."""

import hashlib
from functools import lru_cache

from localpuppet.base.formats.names import NodeName

# Seconds beside a node's own interval and twice its splay: a run takes its time.
GRACE = 300.0


@lru_cache(maxsize=32_768)
def splay(node: NodeName, every: float) -> float:
    """Return the node's second of each period: constant per node, spread over the fleet.

    Args:
        node: The node.
        every: The period in seconds.
    """
    digest = hashlib.sha256(node.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * every


def due(node: NodeName, every: float) -> float:
    """Return how many seconds after the end of a run the next one is late.

    Args:
        node: The node.
        every: Seconds between its own runs.
    """
    return every + max(2 * splay(node, every), GRACE)
