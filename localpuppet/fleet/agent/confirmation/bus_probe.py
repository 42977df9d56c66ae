"""Check that the bus is reachable: open a new connection, and read the node's nonce back.

- A connection from before the run does not count. It would hide a firewall that drops new
  connections only.
- An engine without servers (a file on this machine) cannot be cut off: its answer counts even if it
  is an error.
"""

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.agent.confirmation.decision import BusContact
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.inventory.presence import believe
from localpuppet.fleet.trust.signing import Verifier

Store = Callable[[], Awaitable[KeyValue]]
# Returns whether a server of the bus, or its machine, answers a new connection.
Answers = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class BusProbe:
    """Looks at the bus.

    Attributes:
        me: This node.
        store: Returns the store that the agent is connected to.
        verifier: Verifies signatures.
        answers: Tries new connections; `None` for an engine without servers.
    """

    me: NodeName
    _: KW_ONLY
    store: Store
    verifier: Verifier
    answers: Answers | None

    async def new_connection(self) -> bool:
        """Return whether an address of the bus answers a new connection."""
        return self.answers is None or await self.answers()

    async def read_back(self, nonce: str) -> BusContact:
        """Return whether the bus returns this node's presence with a nonce, or answers at all."""
        try:
            kv = await self.store()
            entry = await kv.get(f"{PRESENCE}{self.me}")
        except UnavailableError:
            return BusContact.NOTHING
        if entry is None:
            return BusContact.CONNECTED
        confirmation = believe(self.verifier, self.me, entry.value).get("confirmation")
        same = isinstance(confirmation, dict) and bool(nonce) and confirmation.get("nonce") == nonce
        return BusContact.READ_BACK if same else BusContact.CONNECTED

    async def look(self, nonce: str) -> tuple[BusContact, bool]:
        """Return the answer of the bus, and whether a new connection succeeded.

        Args:
            nonce: The nonce that this node's presence should have.
        """
        fresh = await self.new_connection()
        contact = await self.read_back(nonce)
        if fresh:
            return max(contact, BusContact.CONNECTED, key=_BEST.index), True
        return min(contact, BusContact.CONNECTED, key=_BEST.index), False


_BEST = (BusContact.NOTHING, BusContact.CONNECTED, BusContact.READ_BACK)
