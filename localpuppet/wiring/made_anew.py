"""What a node that was made anew can know of itself: its own last entry, as the bus has it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from localpuppet.errors import IntegrityError, LocalpuppetError, UnavailableError
from localpuppet.wiring.fleet import FleetWiring
from localpuppet.wiring.inventory import InventoryWiring
from localpuppet.wiring.node import NodeWiring
from localpuppet.wiring.run_async import run

if TYPE_CHECKING:
    from localpuppet.inventory.entry import InventoryEntry
    from localpuppet.releases.ledger import AppliedElsewhere

# Seconds that the first run of a node waits for what the bus knows of the node.
ASKING = 10.0


class MadeAnew:
    """Asks what this node said before it was made anew.

    Args:
        node: The parts of the node.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self._fleet = FleetWiring(node)
        self._inventory = InventoryWiring(node, fleet=self._fleet)

    def applied(self, source: str, note: Callable[[str], None]) -> "AppliedElsewhere | None":
        """Return the release of a source that this node last told the others of; `None` for none.

        Only an entry that this node has signed, by a key that is believed here, counts. What goes
        wrong is noted: a bus that is away, or lies, keeps no node from its first run.

        Args:
            source: The source, of which no release was applied here yet.
            note: Takes what a person should read.
        """
        from localpuppet.formats.names import ReleasePath
        from localpuppet.releases.ledger import AppliedElsewhere

        bus = self._node.fleet_settings.bus
        if not bus.named or (bus.engine == "sqlite" and not bus.sqlite.exists()):
            return None
        try:
            entry = self._own_entry()
            if entry is None or entry.release is None:
                return None
            app = ReleasePath.parse(entry.release, where="inventory entry: release")
        except LocalpuppetError as error:
            note(
                f"no release of {source} was applied here yet, and what this node said on the bus"
                f" of one before does not count: {error}"
            )
            return None
        if app.source != source:
            return None
        note(
            f"no release of {source} was applied here yet; as this node said on the bus, its last"
            f" is {app}"
        )
        return AppliedElsewhere(app=app, tagged_at=entry.tagged_at)

    def _own_entry(self) -> "InventoryEntry | None":
        """Return this node's own entry, as the bus has it.

        Raises:
            UnavailableError: The bus cannot be asked.
            IntegrityError: The entry there is not believed.
            LocalpuppetError: The identity is refused.
        """
        if not self._inventory.agent_is_there():
            return run(self._asked_entry())
        view = self._inventory.view()
        try:
            if view.current_until() is None:
                raise UnavailableError("the agent has not read the bus yet", where="inventory")
            return view.entry(self._fleet.name)
        finally:
            view.close()

    async def _asked_entry(self) -> "InventoryEntry | None":
        from localpuppet.bus.layout import INVENTORY
        from localpuppet.inventory.admission import Refusal

        name = self._fleet.name
        try:
            async with asyncio.timeout(ASKING), self._fleet.connected() as kv:
                found = await kv.get(INVENTORY + name)
        except TimeoutError as error:
            raise UnavailableError(f"did not answer within {ASKING:g} s", where="bus") from error
        if found is None:
            return None
        entry = self._inventory.admission().entry(name, found.value)
        if isinstance(entry, Refusal):
            raise IntegrityError(entry.reason, where=f"the entry of {name}")
        return entry
