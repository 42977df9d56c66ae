"""Looks whether the bus is there: a new connection, and our own words read back through it.

Owns: what counts as an answer. Refuses to know: engines, sockets, and what follows.

A connection that was made before the run does not count: a firewall that lets only new ones drop
would be found out when that connection ends, which may be in weeks. An engine without servers (a
file on this machine) cannot be cut off: it answers always, be it with an error.
"""

from collections.abc import Awaitable, Callable

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.agent.confirming.deciding import Reach
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.inventory.presence import believe
from localpuppet.fleet.trust.signing import Verifier

Store = Callable[[], Awaitable[KeyValue]]
# Whether a server of the bus, or the machine that it is on, answers a new connection.
Answers = Callable[[], Awaitable[bool]]


class Looking:
    """Looks at the bus.

    Args:
        me: This node.
        store: Returns the store that the agent is connected to.
        verifier: Tells whose signatures hold.
        answers: Tries new connections; `None` for an engine that needs none.
    """

    def __init__(
        self, me: NodeName, *, store: Store, verifier: Verifier, answers: Answers | None
    ) -> None:
        self._me = me
        self._store = store
        self._verifier = verifier
        self._answers = answers

    async def new_connection(self) -> bool:
        """Return whether something answers in the place of the bus."""
        return self._answers is None or await self._answers()

    async def read_back(self, nonce: str) -> Reach:
        """Return whether our presence with a nonce comes back; whether the bus answers, if not."""
        try:
            kv = await self._store()
            entry = await kv.get(f"{PRESENCE}{self._me}")
        except UnavailableError:
            return Reach.NOTHING
        if entry is None:
            return Reach.CONNECTED
        told = believe(self._verifier, self._me, entry.value).get("confirmation")
        same = isinstance(told, dict) and bool(nonce) and told.get("nonce") == nonce
        return Reach.READ_BACK if same else Reach.CONNECTED

    async def look(self, nonce: str) -> tuple[Reach, bool]:
        """Return what is heard of the bus, and whether a new connection could be made.

        Args:
            nonce: What our presence says, if everything is well.
        """
        fresh = await self.new_connection()
        found = await self.read_back(nonce)
        if fresh:
            return max(found, Reach.CONNECTED, key=_BEST.index), True
        return min(found, Reach.CONNECTED, key=_BEST.index), False


_BEST = (Reach.NOTHING, Reach.CONNECTED, Reach.READ_BACK)
