"""The keys of the bus, and what each of them holds.

The code that reads and writes them is in `triggers`, `requests`, `inventory`, `history` and
`leases`.

    KEYPREFIX/hosts/RECEIVER/SENDER               the newest trigger of a sender for a receiver
    /localpuppet/store                            when the store began, on etcd
    /localpuppet/presence/NODE                    presence and status of a node
    /localpuppet/inventory/NODE                   its inventory entry after its last good run
    /localpuppet/exports/NODE/SLOT/N              its exported resources, in chunks
    /localpuppet/catalogs/NODE/SLOT/N             its whole catalog, in chunks
    /localpuppet/history/NODE/KIND/SLOT           a day of its runs, or of requests to it
    /localpuppet/tombstones/NODE                  its tombstone: what it published before is void
    /localpuppet/leases/NAME                      the holder of a lease
    /localpuppet/requests/NODE/CALLER/ID          a request to a node
    /localpuppet/replies/CALLER/NODE/ID           the node's reply
    /localpuppet/rollouts/CALLER/ID               the checkpoint of a rollout's journal
    /localpuppet/commands/WHO/CALLER/ROLLOUT/ID   a command to the controller of a rollout

The receiver comes before the sender, so that a store's permissions can give each node its own
prefix.
"""

import re

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, SignerName

KEYPREFIX = "/puppet_trigger/events"
BASE = "/localpuppet"
STORE = f"{BASE}/store"
PRESENCE = f"{BASE}/presence/"
INVENTORY = f"{BASE}/inventory/"
EXPORTS = f"{BASE}/exports/"
CATALOGS = f"{BASE}/catalogs/"
HISTORY = f"{BASE}/history/"
TOMBSTONES = f"{BASE}/tombstones/"
LEASES = f"{BASE}/leases/"
_LEASE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")


def triggers_for(node: NodeName, keyprefix: str) -> str:
    return f"{keyprefix}/hosts/{node}/"


def exports_of(node: NodeName) -> str:
    """Return the prefix of a node's exported resources."""
    return f"{EXPORTS}{node}/"


def catalogs_of(node: NodeName) -> str:
    """Return the prefix of a node's catalog."""
    return f"{CATALOGS}{node}/"


def history_of(node: NodeName) -> str:
    """Return the prefix of a node's history."""
    return f"{HISTORY}{node}/"


def requests_for(node: NodeName) -> str:
    return f"{BASE}/requests/{node}/"


def requests_of(caller: str, node: NodeName) -> str:
    """Return the prefix of a caller's requests to a node."""
    return f"{requests_for(node)}{caller}/"


def replies_to(caller: str) -> str:
    return f"{BASE}/replies/{caller}/"


def replies_of(node: NodeName | SignerName, caller: str) -> str:
    """Return the prefix of a node's or person's replies to a caller."""
    return f"{replies_to(caller)}{node}/"


def rollouts_of(caller: str) -> str:
    """Return the prefix of the checkpoints of a caller's rollouts."""
    return f"{BASE}/rollouts/{caller}/"


def commands_to(receiver: str) -> str:
    """Return the prefix of the rollout commands to a controller."""
    return f"{BASE}/commands/{receiver}/"


def commands_of(caller: str, receiver: str) -> str:
    """Return the prefix of a caller's rollout commands to a controller."""
    return f"{commands_to(receiver)}{caller}/"


def parse_lease_name(text: str) -> str:
    if not _LEASE_NAME.match(text):
        raise InvalidInputError(
            f"{text[:60]!r} is not a lease name",
            hint="up to 100 letters, digits and '_ . -', the first no '.' or '-'",
        )
    return text
