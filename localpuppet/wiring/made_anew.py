"""What a node that was made anew can know of itself: its own last entry, as the bus has it.

    python -m localpuppet.wiring.made_anew ROOT

is a process of its own that looks at what the agent of a node holds. A run is a child of the
agent's, and SQLite cannot open a file in a child of a process that has it open.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from localpuppet.errors import IntegrityError, LocalpuppetError, UnavailableError
from localpuppet.formats.names import ReleasePath
from localpuppet.formats.strict_json import loads
from localpuppet.releases.ledger import AppliedElsewhere
from localpuppet.wiring.fleet import FleetWiring
from localpuppet.wiring.inventory import InventoryWiring
from localpuppet.wiring.node import NodeWiring
from localpuppet.wiring.run_async import run

if TYPE_CHECKING:
    from localpuppet.inventory.entry import InventoryEntry

# Seconds that the first run of a node waits for what the bus knows of the node.
ASKING = 10.0
# Bytes that the process tells.
MAX_TOLD = 64 * 1024


class MadeAnew:
    """Asks what this node said before it was made anew.

    Args:
        node: The parts of the node.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self._fleet = FleetWiring(node)
        self._inventory = InventoryWiring(node, fleet=self._fleet)

    def applied(self, source: str, note: Callable[[str], None]) -> AppliedElsewhere | None:
        """Return the release of a source that this node last told the others of; `None` for none.

        Only an entry that this node has signed, by a key that is believed here, counts. What goes
        wrong is noted: a bus that is away, or lies, keeps no node from its first run.

        Args:
            source: The source, of which no release was applied here yet.
            note: Takes what a person should read.
        """
        bus = self._node.fleet_settings.bus
        if not bus.named or (bus.engine == "sqlite" and not bus.sqlite.exists()):
            return None
        try:
            there = self._inventory.agent_is_there()
            said = self._agents() if there else _applied(run(self._asked_entry()))
        except LocalpuppetError as error:
            note(
                f"no release of {source} was applied here yet, and what this node said on the bus"
                f" of one before does not count: {error}"
            )
            return None
        if said is None or said.app.source != source:
            return None
        note(
            f"no release of {source} was applied here yet; as this node said on the bus, its last"
            f" is {said.app}"
        )
        return said

    def _agents(self) -> AppliedElsewhere | None:
        """Return what the agent holds of this node, as a process of its own reads it.

        Raises:
            UnavailableError: The agent does not hold what is on the bus, or nobody can tell.
        """
        node = self._node
        done = node.processes.capture(
            [sys.executable, "-m", __name__, str(node.settings.root)],
            env={**node.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=ASKING,
            limit=MAX_TOLD,
        )
        if done is None:
            raise UnavailableError(f"was not read within {ASKING:g} s", where="inventory")
        try:
            told = loads(done.stdout)
            if told is None:
                return None
            if "problem" not in told:
                app = ReleasePath.parse(told["app"], where="inventory entry: release")
                return AppliedElsewhere(app=app, tagged_at=told["at"])
            problem = str(told["problem"])
        except (ValueError, KeyError, TypeError):
            problem = f"could not be read: a process ended with {done.ended}"
        raise UnavailableError(problem, where="inventory")

    def look(self) -> AppliedElsewhere | None:
        """Return what the agent holds of this node.

        Raises:
            UnavailableError: It has not read the bus yet.
            LocalpuppetError: What it holds cannot be read, or the identity is refused.
        """
        view = self._inventory.view()
        try:
            if view.current_until() is None:
                raise UnavailableError("the agent has not read the bus yet", where="inventory")
            return _applied(view.entry(self._fleet.name))
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


def _applied(entry: "InventoryEntry | None") -> AppliedElsewhere | None:
    """Return what an entry says of the release; see `MadeAnew.applied`.

    Raises:
        InvalidInputError: What it says is not a release.
    """
    if entry is None or entry.release is None:
        return None
    app = ReleasePath.parse(entry.release, where="inventory entry: release")
    return AppliedElsewhere(app=app, tagged_at=entry.tagged_at)


def main(root: str) -> None:
    """Tell, as JSON, what the agent of a node holds of it."""
    try:
        found = MadeAnew(NodeWiring(root)).look()
        told = None if found is None else {"app": str(found.app), "at": found.tagged_at}
    except LocalpuppetError as error:
        told = {"problem": str(error)}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
