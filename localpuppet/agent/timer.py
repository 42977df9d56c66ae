"""When a node's timer is due: decided without asking anybody, spread over the fleet."""

import hashlib

from localpuppet.formats.names import NodeName


def splay(node: NodeName, every: float) -> float:
    """Return at which second of each period a node runs: the same for ever, spread over the fleet.

    Args:
        node: The node.
        every: The period in seconds.
    """
    digest = hashlib.sha256(node.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * every
