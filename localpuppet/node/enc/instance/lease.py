"""Parses the DHCP lease that names CloudStack's metadata service, from the DHCP client's file.

CloudStack has no fixed address for the service: the virtual router, which granted the lease,
answers. A router outside of the lease's own subnet is refused, so that a forged DHCP reply cannot
make this node talk to any machine.

Two formats are read: dhclient's (dhclient.leases(5); of several leases in one file the last
counts), one statement on each line, and systemd-networkd's, `KEY=VALUE`.
"""

import ipaddress
import re
from ipaddress import IPv4Address, IPv4Network

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value

# A subnet wider than 10.0.0.0/8 would admit almost any server.
MIN_PREFIX = 8
_DHCLIENT = re.compile(r"^lease \{", re.MULTILINE)
_FORMS = (
    (r"^ *fixed-address {};$", r"^ *option subnet-mask {};$"),
    (r"^ADDRESS={}$", r"^NETMASK={}$"),
)
_SERVERS = (r"^ *option dhcp-server-identifier {};$", r"^SERVER_ADDRESS={}$")
_QUAD = r"([0-9.]{7,15})"


class DhcpLease(Value):
    """A DHCP lease of this machine.

    Attributes:
        address: This machine's address.
        server: The server's address, on the same subnet.
    """

    address: IPv4Address
    server: IPv4Address


def parse_lease(text: str) -> DhcpLease | None:
    """Return the lease in a client's file, or `None`.

    Raises:
        InvalidInputError: The lease's server is not on its subnet, or an address is malformed.
    """
    starts = [match.start() for match in _DHCLIENT.finditer(text)]
    form = 0 if starts else 1
    newest = text[starts[-1] :] if starts else text
    address, mask = (_first_match(pattern, newest) for pattern in _FORMS[form])
    server = _first_match(_SERVERS[form], newest)
    if not (address and mask and server):
        return None
    try:
        own, other = IPv4Address(address), IPv4Address(server)
        subnet = ipaddress.ip_network(f"{address}/{mask}", strict=False)
    except ValueError as error:
        raise InvalidInputError("has a malformed address") from error
    if not _is_neighbour(own, other, subnet):
        raise InvalidInputError("the DHCP server is not on the lease's own subnet")
    return DhcpLease(address=own, server=other)


def _first_match(pattern: str, text: str) -> str | None:
    match = re.search(pattern.replace("{}", _QUAD), text, re.MULTILINE)
    return match.group(1) if match else None


def _is_neighbour(
    own: IPv4Address, other: IPv4Address, subnet: "IPv4Network | ipaddress.IPv6Network"
) -> bool:
    return (
        isinstance(subnet, IPv4Network)
        and subnet.prefixlen >= MIN_PREFIX
        and other in subnet
        and other not in (own, subnet.network_address, subnet.broadcast_address)
        and not (other.is_loopback or other.is_multicast)
    )
