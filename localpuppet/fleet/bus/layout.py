"""The keys of the bus: which key holds what.

Owns: names of keys and prefixes. Refuses to know: engines, and what the values say; the recipes
over these keys stand in `triggers`, `requests`, `inventory` and `leases`.

    KEYPREFIX/hosts/RECEIVER/SENDER               the newest trigger of a sender for a receiver
    /localpuppet/presence/NODE                    who is there, and how it is
    /localpuppet/inventory/NODE                   what it was after its last good run
    /localpuppet/exports/NODE/SLOT/N              the resources that it exports, in chunks
    /localpuppet/forgotten/NODE                   that what it said before a time is forgotten
    /localpuppet/leases/NAME                      who has a lease
    /localpuppet/requests/NODE/CALLER/ID          a request to a node
    /localpuppet/replies/CALLER/NODE/ID           what it answered
    /localpuppet/rollouts/CALLER/ID               the head of a rollout's journal
    /localpuppet/words/WHO/CALLER/ROLLOUT/ID      a word to who goes on with a rollout

The receiver stands before the sender, so that a store's permissions can give each node its own.
"""

import re

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, SignerName

KEYPREFIX = "/puppet_trigger/events"
BASE = "/localpuppet"
PRESENCE = f"{BASE}/presence/"
INVENTORY = f"{BASE}/inventory/"
EXPORTS = f"{BASE}/exports/"
FORGOTTEN = f"{BASE}/forgotten/"
LEASES = f"{BASE}/leases/"
# Bytes of a signed trigger or request: 64 KiB that are signed, in base64, and who signed them.
MAX_ASKING = 128 * 1024
# Bytes of a lease's value: who has the lease, and for what.
MAX_LEASE = 4 * 1024
# Bytes of a signed tombstone.
MAX_TOMBSTONE = 16 * 1024
_LEASE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")


def triggers_for(node: NodeName, keyprefix: str) -> str:
    """Return the prefix of the triggers for a node."""
    return f"{keyprefix}/hosts/{node}/"


def exports_of(node: NodeName) -> str:
    """Return the prefix of what a node exports."""
    return f"{EXPORTS}{node}/"


def requests_for(node: NodeName) -> str:
    """Return the prefix of the requests to a node."""
    return f"{BASE}/requests/{node}/"


def requests_of(caller: str, node: NodeName) -> str:
    """Return the prefix of a caller's requests to a node."""
    return f"{requests_for(node)}{caller}/"


def replies_to(caller: str) -> str:
    """Return the prefix of the replies to a caller."""
    return f"{BASE}/replies/{caller}/"


def replies_of(node: NodeName | SignerName, caller: str) -> str:
    """Return the prefix of a node's or person's replies to a caller."""
    return f"{replies_to(caller)}{node}/"


def rollouts_of(caller: str) -> str:
    """Return the prefix of the heads of a caller's rollouts."""
    return f"{BASE}/rollouts/{caller}/"


def words_to(receiver: str) -> str:
    """Return the prefix of what is said to who goes on with rollouts."""
    return f"{BASE}/words/{receiver}/"


def words_of(caller: str, receiver: str) -> str:
    """Return the prefix of what a caller says to who goes on with rollouts."""
    return f"{words_to(receiver)}{caller}/"


def parse_lease_name(text: str) -> str:
    """Return the name of a lease.

    Raises:
        InvalidInputError: The text is not a lease name.
    """
    if not _LEASE_NAME.match(text):
        raise InvalidInputError(
            f"{text[:60]!r} is not a lease name",
            hint="up to 100 letters, digits and '_ . -', the first no '.' or '-'",
        )
    return text
