"""What the bus knows that a reinstalled node does not: its own last entry, and what tags were.

    python -m localpuppet.fleet.wiring.reinstalled_node ROOT SECONDS
    python -m localpuppet.fleet.wiring.reinstalled_node ROOT NAME/tags/TAG

The first prints what the agent of a node has read of the node, and waits for up to SECONDS until
the agent has read the bus. The second prints the commits that other nodes report for a release.
A run is a child of the agent's, and SQLite cannot open a file in a child of a process that has it
open.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.strict_json import loads
from localpuppet.fleet.wiring.fleet import FleetWiring
from localpuppet.fleet.wiring.inventory import InventoryWiring
from localpuppet.fleet.wiring.puppet_environment import module_words
from localpuppet.fleet.wiring.run_async import run
from localpuppet.fleet.wiring.settings import fleet_settings
from localpuppet.node.releases.ledger import AppliedElsewhere
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.node.releases.staged import StagedRelease

# Seconds that the first run of a node waits for what the bus knows of the node.
ASKING = 10.0
# The same, where its agent has just started, and is still about to read the bus.
READING = 20.0
# Seconds between looks whether the agent has.
LOOK = 0.2
# Bytes that the process tells.
MAX_TOLD = 64 * 1024
# Nodes that are named for each commit of a tag.
MAX_NODES = 20


class NotReadError(UnavailableError):
    """The agent has not read the bus yet."""


class ReinstalledNode:
    """Asks what this node said before it was made anew.

    Args:
        node: The parts of the node.
        reading: Seconds that the first run waits for an agent that has not read the bus yet.
    """

    def __init__(self, node: NodeWiring, *, reading: float = READING) -> None:
        self._node = node
        self._reading = reading
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
        if not _has_bus(self._node):
            return None
        try:
            there = self._inventory.agent_is_there()
            said = self._agents(note) if there else _applied(run(self._asked_entry()))
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

    def _agents(self, note: Callable[[str], None]) -> AppliedElsewhere | None:
        """Return what the agent holds of this node.

        An agent that has just started may begin its first run before it has read the bus: that run
        waits for it, and does not go back because it was early.

        Raises:
            UnavailableError: The agent does not hold what is on the bus, or nobody can tell.
        """
        try:
            return self._told(0.0)
        except NotReadError:
            wait = f"{self._reading:g} s"
            note(f"the agent has not read the bus yet: the run waits for it, {wait} at the most")
            return self._told(self._reading)

    def _told(self, patience: float) -> AppliedElsewhere | None:
        """Return what a process of its own reads; see `_agents`.

        Raises:
            NotReadError: The agent has not read the bus within `patience` seconds.
            UnavailableError: The agent does not hold what is on the bus, or nobody can tell.
        """
        told = _ask_process(self._node, str(patience), most=ASKING + patience)
        if told is None:
            return None
        app = ReleasePath.parse(told["app"], where="inventory entry: release")
        return AppliedElsewhere(app=app, tagged_at=told["at"])

    def look(self, patience: float) -> AppliedElsewhere | None:
        """Return what the agent holds of this node.

        Args:
            patience: Seconds to wait for the agent to have read the bus.

        Raises:
            NotReadError: It has not read the bus by then.
            LocalpuppetError: What it holds cannot be read, or the identity is refused.
        """
        deadline = time.monotonic() + patience
        view = self._inventory.view()
        try:
            while view.current_until() is None:
                if time.monotonic() >= deadline:
                    raise NotReadError("the agent has not read the bus yet", where="inventory")
                time.sleep(LOOK)
            return _applied(view.entry(self._fleet.name))
        finally:
            view.close()

    async def _asked_entry(self) -> "InventoryEntry | None":
        from localpuppet.fleet.bus.layout import INVENTORY
        from localpuppet.fleet.inventory.admission import EntryRefusal

        name = self._fleet.name
        try:
            async with asyncio.timeout(ASKING), self._fleet.connected() as kv:
                found = await kv.get(INVENTORY + name)
        except TimeoutError as error:
            raise UnavailableError(f"did not answer within {ASKING:g} s", where="bus") from error
        if found is None:
            return None
        entry = self._inventory.admission().entry(name, found.value)
        if isinstance(entry, EntryRefusal):
            raise IntegrityError(entry.reason, where=f"the entry of {name}")
        return entry


def compare_with_fleet(node: NodeWiring, staged: "StagedRelease") -> None:
    """Refuse a tag that this node sees for the first time and that is another on other nodes.

    A bus that cannot be asked stops no release: that is noted.

    Args:
        node: The parts of the node.
        staged: The release, as this node has just fetched it.

    Raises:
        IntegrityError: Other nodes report other commits, and no node reports this one.
        StateError: What this node remembers of tags is damaged.
    """
    from localpuppet.node.releases.fetch import compare_commits
    from localpuppet.node.releases.tag_memory import TagMemory

    if TagMemory(node.settings.state).pin(staged.app) is not None:
        return
    note = node.observe("").note
    try:
        if not _has_bus(node):
            return
        answer = _ask_process(node, str(staged.app), most=2 * ASKING)
    except (UnavailableError, InvalidInputError) as error:  # of the bus's settings, too
        note(f"warning: {staged.app} was not compared with other nodes: {error}")
        return
    warning = compare_commits(staged.app, staged.pin, (answer or {}).get("commits", {}))
    if warning:
        note(warning)


def _has_bus(node: NodeWiring) -> bool:
    bus = fleet_settings(node).bus
    return bus.named and (bus.engine != "sqlite" or bus.sqlite.exists())


def _ask_process(node: NodeWiring, what: str, *, most: float) -> dict[str, Any] | None:
    """Return what a separate process reads; see the module.

    Raises:
        NotReadError: The agent has not read the bus in time.
        UnavailableError: The agent does not hold what is on the bus, or the bus cannot be asked.
    """
    done = node.processes.capture(
        [*module_words(__name__), str(node.settings.root), what],
        env={**node.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=most,
        limit=MAX_TOLD,
    )
    if done is None:
        raise UnavailableError(f"was not read within {most:g} s", where="inventory")
    try:
        answer: dict[str, Any] | None = loads(done.stdout)
        if answer is None or "problem" not in answer:
            return answer
        kind = NotReadError if answer["waits"] else UnavailableError
        raise kind(str(answer["problem"]), where=str(answer["where"]))
    except (ValueError, KeyError, TypeError) as error:
        problem = f"could not be read: a process ended with {done.ended}"
        raise UnavailableError(problem, where="inventory") from error


async def _read_commits(node: NodeWiring, app: str) -> dict[str, Any]:
    """Return commit -> nodes, of the nodes whose last good run was of a release."""
    inventory, own = InventoryWiring(node), FleetWiring(node).name
    found: dict[str, list[str]] = {}
    async with asyncio.timeout(ASKING), inventory.reader(lambda _text: None) as view:
        answer = inventory.ask(view, lambda reader: list(reader.entries()))
        for entry in answer.answer:
            if entry.release == app and entry.commit is not None and entry.node != own:
                found.setdefault(entry.commit, []).append(str(entry.node))
    return {"commits": {commit: nodes[:MAX_NODES] for commit, nodes in found.items()}}


def _applied(entry: "InventoryEntry | None") -> AppliedElsewhere | None:
    """Return what an entry says of the release; see `ReinstalledNode.applied`.

    Raises:
        InvalidInputError: What it says is not a release.
    """
    if entry is None or entry.release is None:
        return None
    app = ReleasePath.parse(entry.release, where="inventory entry: release")
    return AppliedElsewhere(app=app, tagged_at=entry.tagged_at)


def main(root: str, what: str) -> None:
    """Print, as JSON, what the bus knows; see the module."""
    told: dict[str, Any] | None
    try:
        if "/" in what:
            told = run(_read_commits(NodeWiring(root), what))
        else:
            found = ReinstalledNode(NodeWiring(root)).look(float(what))
            told = None if found is None else {"app": str(found.app), "at": found.tagged_at}
    except TimeoutError:
        problem = f"did not answer within {ASKING:g} s"
        told = {"problem": problem, "where": "bus", "waits": False}
    except LocalpuppetError as error:
        waits = isinstance(error, NotReadError)
        told = {"problem": error.what, "where": error.where, "waits": waits}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
