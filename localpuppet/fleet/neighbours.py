"""What a run of this node needs of other nodes, and what it publishes afterwards.

A reinstalled node asks the bus for what it has lost: its own last entry, and the commits of tags.

    python -m localpuppet.fleet.neighbours ROOT SECONDS
    python -m localpuppet.fleet.neighbours ROOT NAME/tags/TAG

The first prints the node's entry in the agent's view, and waits up to SECONDS until the agent has
read the bus. The second prints the commits that other nodes report for a release. Both are separate
processes, because a run is a child of the agent, and SQLite cannot open a file in a child of a
process that has it open.

Imports are deferred: a node without a bus stages a release 30 ms faster.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.own_program import module_words
from localpuppet.fleet.app import FleetApp, run
from localpuppet.node.app import NodeApp, program_environment
from localpuppet.node.node_ports import Neighbours
from localpuppet.node.releases.release_records import AppliedElsewhere

if TYPE_CHECKING:
    from localpuppet.base.formats.values import Json
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.node.releases.release_records import StagedRelease
    from localpuppet.node.runs.run import Attempt, Status
    from localpuppet.node.runs.run_records import RunDirectory

# Seconds that the first run of a node waits for the node's entry on the bus.
ASKING = 10.0
# The same, if its agent has just started and has not read the bus yet.
READING = 20.0
# Seconds between two checks whether the agent has read the bus.
LOOK = 0.2
# Bytes of the process's output.
MAX_TOLD = 64 * 1024
# Nodes that are named for each commit of a tag.
MAX_NODES = 20


class NotReadError(UnavailableError):
    """The agent has not read the bus yet."""


class FleetNeighbours(Neighbours):
    """The fleet that a node belongs to; see `Neighbours`."""

    def __init__(self, node: NodeApp) -> None:
        self._node = node
        self._fleet = FleetApp(node)

    @property
    def variables(self) -> Mapping[str, str]:
        """The root, the agent's socket and the command for Puppet code."""
        return self._fleet.own_variables

    @property
    def certname(self) -> str:
        """The setting `node`; empty if it is not set."""
        return self._fleet.settings.node or ""

    @property
    def exchange_resources(self) -> bool:
        """Whether the settings name a bus."""
        return self._fleet.settings.bus.named

    def applied_elsewhere(
        self, app: ReleasePath, note: Callable[[str], None]
    ) -> AppliedElsewhere | None:
        """Return the release in this node's own entry on the bus; see `ReinstalledNode.applied`."""
        return ReinstalledNode(self._fleet).applied(app.source, note)

    def facts(self, name: NodeName) -> "Mapping[str, Json] | None":
        """Return the facts in the inventory entry of a node."""
        asking = self._fleet.entries.answer(lambda reader: reader.entry(name), lambda _text: None)
        entry = run(asking).answer
        return None if entry is None else entry.facts

    def compare_tag(self, staged: "StagedRelease") -> None:
        """Refuse a tag that the entries of other nodes contradict."""
        compare_with_fleet(self._fleet, staged)

    def after_run(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        """Publish a run's summary and what it has for others; see `NodePublishing`."""
        fleet = self._fleet

        def release() -> bool:
            # Most nodes never kick: their runs then save the imports.
            return (fleet.state / "kicks").exists() and fleet.held_kicks.release(run.id)

        fleet.publishing.after_run(note, run, status, release=release)

    def after_refusal(self, note: Callable[[str], None], attempt: "Attempt") -> None:
        """Publish the summary of a refused apply; see `NodePublishing`."""
        try:
            if self._fleet.settings.bus.named:
                self._fleet.publishing.after_refusal(note, attempt)
        except InvalidInputError as error:  # a setting, which may be why it was refused
            note(f"this run was not published: {error}")

    def after_command(
        self, note: Callable[[str], None], user: str, action: str, subject: str
    ) -> None:
        """Publish that a user changed the holds on this node; see `NodePublishing`."""
        if self._fleet.settings.bus.named:
            self._fleet.publishing.after_command(note, user, action, subject)


class ReinstalledNode:
    """Looks up the entry that this node published before it was reinstalled.

    The first run waits `reading` seconds for an agent that has not read the bus yet.
    """

    def __init__(self, fleet: FleetApp, *, reading: float = READING) -> None:
        self._fleet = fleet
        self._reading = reading

    def applied(self, source: str, note: Callable[[str], None]) -> AppliedElsewhere | None:
        """Return the release of a source that this node published last, or `None`.

        Only an entry with this node's signature, by a key that is trusted here, counts. Errors
        become notes: an unreachable or lying bus does not prevent a node's first run.
        """
        if not _has_bus(self._fleet):
            return None
        try:
            there = self._fleet.entries.agent_is_there()
            elsewhere = self._agents(note) if there else _applied(run(self._asked_entry()))
        except LocalpuppetError as error:
            note(
                f"no release of {source} was applied here yet, and the release that this node"
                f" published before is rejected: {error}"
            )
            return None
        if elsewhere is None or elsewhere.release.source != source:
            return None
        note(
            f"no release of {source} was applied here yet; this node published {elsewhere.release}"
            " as its last release"
        )
        return elsewhere

    def _agents(self, note: Callable[[str], None]) -> AppliedElsewhere | None:
        """Return the release in this node's entry, from the agent's view.

        An agent that has just started may begin its first run before it has read the bus: that run
        waits for it, and does not go back because it was early.
        """
        try:
            return self._ask_other_process(0.0)
        except NotReadError:
            wait = f"{self._reading:g} s"
            note(f"the agent has not read the bus yet: the run waits for it for up to {wait}")
            return self._ask_other_process(self._reading)

    def _ask_other_process(self, patience: float) -> AppliedElsewhere | None:
        """Return the release that a separate process reads; see `_agents`."""
        report = _ask_process(self._fleet.node, str(patience), most=ASKING + patience)
        if report is None:
            return None
        release = ReleasePath.parse(report["release"], where="inventory entry: release")
        return AppliedElsewhere(release=release, tagged_at=report["tagged_at"])

    def look(self, patience: float) -> AppliedElsewhere | None:
        """Return the release in this node's entry, once the agent has read the bus."""
        deadline = time.monotonic() + patience
        view = self._fleet.view()
        try:
            while view.current_until() is None:
                if time.monotonic() >= deadline:
                    raise NotReadError("the agent has not read the bus yet", where="inventory")
                time.sleep(LOOK)
            return _applied(view.entry(self._fleet.name))
        finally:
            view.close()

    async def _asked_entry(self) -> "InventoryEntry | None":
        import asyncio

        from localpuppet.fleet.bus.layout import INVENTORY

        name = self._fleet.name
        try:
            async with asyncio.timeout(ASKING), self._fleet.connected() as kv:
                stored = await kv.get(INVENTORY + name)
        except TimeoutError as error:
            raise UnavailableError(f"did not answer within {ASKING:g} s", where="bus") from error
        if stored is None:
            return None
        [(_, entry)] = self._fleet.admission().entries({name: stored.value})
        if isinstance(entry, str):
            raise IntegrityError(entry, where=f"the entry of {name}")
        return entry


def compare_with_fleet(fleet: FleetApp, staged: "StagedRelease") -> None:
    """Refuse a new tag that other nodes report with another commit.

    If the bus is unreachable, a note says so, and the release is accepted.
    """
    from localpuppet.node.releases.fetch import compare_commits
    from localpuppet.node.releases.release_records import TagMemory

    node = fleet.node
    if TagMemory(node.settings.state).pin(staged.release) is not None:
        return
    note = node.observe("").note
    try:
        if not _has_bus(fleet):
            return
        answer = _ask_process(node, str(staged.release), most=2 * ASKING)
    except (UnavailableError, InvalidInputError) as error:  # of the bus's settings, too
        note(f"warning: {staged.release} was not compared with other nodes: {error}")
        return
    warning = compare_commits(staged.release, staged.pin, (answer or {}).get("commits", {}))
    if warning:
        note(warning)


def _has_bus(fleet: FleetApp) -> bool:
    bus = fleet.settings.bus
    return bus.named and (bus.engine != "sqlite" or bus.sqlite.exists())


def _ask_process(node: NodeApp, what: str, *, most: float) -> dict[str, Any] | None:
    """Return the output of a separate process; see the module."""
    done = node.processes.capture(
        [*module_words("localpuppet.fleet.neighbours"), str(node.settings.root), what],
        env={**program_environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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


async def _read_commits(fleet: FleetApp, app: str) -> dict[str, Any]:
    """Return commit -> nodes, for the nodes whose last good run was of a release."""
    import asyncio

    own = fleet.name
    commits: dict[str, list[str]] = {}
    async with asyncio.timeout(ASKING):
        answer = await fleet.entries.answer(
            lambda reader: list(reader.entries()), lambda _text: None
        )
        for entry in answer.answer:
            if entry.release == app and entry.commit is not None and entry.node != own:
                commits.setdefault(entry.commit, []).append(str(entry.node))
    return {"commits": {commit: nodes[:MAX_NODES] for commit, nodes in commits.items()}}


def _applied(entry: "InventoryEntry | None") -> AppliedElsewhere | None:
    """Return the release in an entry; see `ReinstalledNode.applied`."""
    if entry is None or entry.release is None:
        return None
    release = ReleasePath.parse(entry.release, where="inventory entry: release")
    return AppliedElsewhere(release=release, tagged_at=entry.tagged_at)


def main(root: str, what: str) -> None:
    """Print what the bus knows as JSON; see the module."""
    document: dict[str, Any] | None
    fleet = FleetApp(NodeApp(root))
    try:
        if "/" in what:
            document = run(_read_commits(fleet, what))
        else:
            elsewhere = ReinstalledNode(fleet).look(float(what))
            document = (
                None
                if elsewhere is None
                else {"release": str(elsewhere.release), "tagged_at": elsewhere.tagged_at}
            )
    except TimeoutError:
        problem = f"did not answer within {ASKING:g} s"
        document = {"problem": problem, "where": "bus", "waits": False}
    except LocalpuppetError as error:
        waits = isinstance(error, NotReadError)
        document = {"problem": error.what, "where": error.where, "waits": waits}
    sys.stdout.write(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
