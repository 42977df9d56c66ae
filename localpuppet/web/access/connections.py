"""Counts connections, in total and by address, against limits.

An address has its own limit, so that one machine keeps no other out.
"""

import ipaddress
from collections import Counter

# Connections at once.
MOST = 600
MOST_OF_ONE = 60
# Of IPv6 a network of this many bits is one address: a machine has as many as it likes in it.
SITE_BITS = 64


class ConnectionTable:
    """The open connections.

    Args:
        most: Maximum in total.
        of_one: Maximum from one address.
    """

    def __init__(self, *, most: int = MOST, of_one: int = MOST_OF_ONE) -> None:
        self._most = most
        self._of_one = of_one
        self._there: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Return the number of connections."""
        return self._there.total()

    def enter(self, address: str) -> str | None:
        """Count a connection; return the argument for `leave`, or `None` if it is rejected.

        Args:
            address: The address of the client.
        """
        peer = _one(address)
        if self._there[peer] >= self._of_one or self.total >= self._most:
            return None
        self._there[peer] += 1
        return peer

    def leave(self, peer: str) -> None:
        """Remove an ended connection from the counts.

        Args:
            peer: What `enter` returned.
        """
        self._there[peer] -= 1
        if not self._there[peer]:
            del self._there[peer]


def _one(address: str) -> str:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, SITE_BITS), strict=False))
    return str(ip)
