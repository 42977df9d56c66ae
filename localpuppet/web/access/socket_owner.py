"""Finds the user of the other end of a TCP connection within this machine.

The kernel is asked for exactly that socket (`sock_diag(7)`), so the cost does not depend on how
many sockets exist.

- A socket that its program has closed already has the number of root and no inode. It has no owner.
- A socket in another network namespace has no owner either.
- In a user namespace the kernel shows users that have no number there as `NOBODY`. So this user is
  never an owner.
- If no connection has these addresses, the kernel answers with a listening socket of that port.
  Its answer then names other ports, and counts as none.
"""

import ipaddress
import socket
import struct

NOBODY = 65534
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
# Family, protocol, states; ports and addresses; any interface, and no cookie.
_QUERY = struct.Struct("=BBxx4s2s2s16s16s4x8s")
_ANSWER = struct.Struct("=IHHII")
_MAX_ANSWER = 8192
# The state, the socket's ports and addresses, three counters, the user's number and the inode.
_OWNER = struct.Struct("=4x2s2s56xII")
_ANY = b"\xff" * 8
Address = tuple[str, int]


def socket_owner(client: Address, server: Address) -> int | None:
    """Return the number of the user whose socket is the client of a connection.

    Args:
        client: The address and port of the client.
        server: The address and port of this end.

    Returns:
        `None` if the kernel does not know such a socket, or does not answer.
    """
    ends = [ipaddress.ip_address(host.partition("%")[0]) for host, _ in (client, server)]
    family = socket.AF_INET6 if ends[0].version == 6 else socket.AF_INET
    ports = client[1].to_bytes(2), server[1].to_bytes(2)
    query = _QUERY.pack(
        family, socket.IPPROTO_TCP, b"\xff" * 4, *ports, *(end.packed for end in ends), _ANY
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.send(_ANSWER.pack(_ANSWER.size + len(query), _BY_FAMILY, _REQUEST, 1, 0) + query)
            answer = kernel.recv(_MAX_ANSWER)
    except OSError:
        return None
    _, kind, *_ = _ANSWER.unpack_from(answer)
    if kind != _BY_FAMILY or len(answer) < _ANSWER.size + _OWNER.size:
        return None
    sport, dport, user, inode = _OWNER.unpack_from(answer, _ANSWER.size)
    return user if inode and user != NOBODY and (sport, dport) == ports else None
