"""From the settings to the inventory: what a run leaves for it, and the view of the others."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from localpuppet.errors import LocalpuppetError, StateError, UnavailableError
from localpuppet.machine.ports import LineKind
from localpuppet.wiring.exports import ExportsWiring
from localpuppet.wiring.fleet import FleetWiring
from localpuppet.wiring.good_run import good_run
from localpuppet.wiring.kicks import CycleWatch, kick_sending, warn_of_cycles
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.agent.asking import Lend
    from localpuppet.agent.export_calls import ExportCalls
    from localpuppet.agent.inventory_calls import InventoryCalls
    from localpuppet.bus.key_value import KeyValue
    from localpuppet.formats.names import NodeName, RunId
    from localpuppet.inventory.admission import EntryAdmission
    from localpuppet.inventory.entry import InventoryEntry
    from localpuppet.inventory.following import ViewFollower
    from localpuppet.inventory.outbox import Outbox
    from localpuppet.inventory.publishing import Publisher, Voice
    from localpuppet.inventory.reading import Found, InventoryReader
    from localpuppet.inventory.view import View
    from localpuppet.machine.ports import Log
    from localpuppet.runs.records import RunDirectory
    from localpuppet.runs.run import Status

    Store = Callable[[], Awaitable[KeyValue]]

T = TypeVar("T")
# Seconds that a run without an agent may go on publishing after it is over.
PATIENCE = 60.0


class InventoryWiring:
    """The parts of the inventory.

    Args:
        node: The parts of the node.
        fleet: The parts of a node of a fleet; made when needed.
    """

    def __init__(self, node: NodeWiring, *, fleet: FleetWiring | None = None) -> None:
        self._node = node
        self._fleet = fleet or FleetWiring(node)
        self._exports = ExportsWiring(node)

    def after_run(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        """Leave the entry of a good whole run, and a run's kicks; see `Node.after_run`.

        What goes wrong is noted: the run is over.

        Args:
            note: Takes what a person should read.
            run: The run.
            status: How it ended.
        """
        try:
            if status.good:
                self._offer(note, run, status)
        except LocalpuppetError as error:
            note(f"the inventory does not hear of this run: {error}")
        try:
            kicks = self._fleet.held_kicks.release(run.id)
            if status.good or kicks:
                self._publish_apart(kicks=kicks)
        except LocalpuppetError as error:
            note(f"the others do not hear of this run: {error}")

    def outbox(self) -> "Outbox":
        """Return what the bus is to hold of this node."""
        from localpuppet.inventory.outbox import Outbox

        return Outbox(self._node.settings.state)

    def publisher(self, store: "Store", log: "Log") -> "Publisher":
        """Return what brings the outbox to the bus, for as long as an agent lives.

        Args:
            store: Returns the bus, connected.
            log: What is said.
        """
        from localpuppet.inventory.publishing import Publisher

        kicks = kick_sending(self._fleet, store, log)
        cycles = CycleWatch(self.outbox(), self.view(), log)

        async def then(told: bool) -> None:
            await kicks.step(told=told)
            await cycles.step()

        return Publisher(self.outbox(), self._voice(), store=store, log=log, then=then)

    async def publish(self, note: Callable[[str], None]) -> bool | None:
        """Publish the outbox now, and send the kicks that wait for it.

        Args:
            note: Takes what a person should read.

        Returns:
            Whether the entry was news to the bus; `None` for no entry yet.

        Raises:
            UnavailableError: The bus cannot be asked, or takes too long.
            LocalpuppetError: The identity is refused, or the disk.
        """
        import asyncio

        from localpuppet.inventory.publishing import publish

        outbox = self.outbox()
        payload = outbox.payload()
        if payload is None and not self._fleet.held_kicks.are_there:
            return None
        news = None
        try:
            async with asyncio.timeout(PATIENCE), self._fleet.connected() as kv:
                if payload is not None:
                    news = await publish(kv, payload, self._voice())
                    outbox.note_published(payload)
                await kick_sending(self._fleet, _lent(kv), _Notes(note)).step(told=True)
        except TimeoutError as error:
            raise UnavailableError(
                f"did not take the entry within {PATIENCE:g} s", where="bus"
            ) from error
        return news

    def view(self) -> "View":
        """Return this node's copy of what the others said."""
        from localpuppet.inventory.view import FILE, View

        settings = self._node.settings
        return View(
            settings.state / FILE,
            now=self._now,
            expire=settings.inventory.expire,
            exports=self._exports.held(),
        )

    def follower(
        self, store: "Store", log: "Log", *, changed: Callable[[], None] = lambda: None
    ) -> "ViewFollower":
        """Return what keeps the view true; see `publisher`, and `ViewFollower` for `changed`."""
        from localpuppet.bus.layout import INVENTORY
        from localpuppet.inventory.following import Sources, ViewFollower

        view = self.view()
        sources = Sources(
            store=store,
            admission=self.admission(),
            trust=self._trust,
            probe=INVENTORY + self._fleet.name,
            companion=self._exports.follower(view, log),
        )
        return ViewFollower(view, sources, clock=self._node.clock, log=log, changed=changed)

    @asynccontextmanager
    async def reader(
        self, note: Callable[[str], None], run: "RunId | None" = None
    ) -> AsyncGenerator["View", None]:
        """Lend the entries: from the view that an agent keeps current, else listed from the bus.

        How old the view is decides whether it may be asked: see `ask`. Where an agent is there and
        the bus is not, for us or for both, that is how old the agent's view is.

        Args:
            note: Takes what a person should read.
            run: The run that asks while it compiles: where no agent is there, its questions share a
                listing, and so see one moment.

        Raises:
            UnavailableError: There is no agent, and the bus cannot be asked; or the view cannot be
                read or written: nobody knows then who is there, whatever the reason.
        """
        view = self.view()
        try:
            there = self.agent_is_there() and self._is_current(view)
            if not (there or (run is not None and self._is_shared(view, run))):
                async with self._fleet.connected() as kv:
                    await self.follower(_lent(kv), _Notes(note)).list_once()
        except UnavailableError:
            if not self.agent_is_there():
                raise
        except StateError as error:
            raise UnavailableError(error.what, where=error.where, hint=error.hint) from error
        try:
            yield view
        finally:
            view.close()

    def ask(
        self, reader: "InventoryReader", question: "Callable[[InventoryReader], T]"
    ) -> "Found[T]":
        """Return what a question finds.

        Raises:
            UnavailableError: It could not be asked: the view is too old, or cannot be read.
        """
        from localpuppet.inventory.reading import must_ask

        return must_ask(
            reader,
            question,
            now=self._now(),
            max_stale=self._node.settings.inventory.max_stale,
            hint="is the bus there?",
        )

    def calls(self, note: Callable[[str], None] | None = None) -> "InventoryCalls":
        """Return what answers Puppet's questions about other nodes.

        Args:
            note: Takes what a person should read; `None` in the agent, which keeps the view.
        """
        from localpuppet.agent.inventory_calls import InventoryCalls

        return InventoryCalls(
            self._lend(note),
            max_stale=self._node.settings.inventory.max_stale,
            records=self._node.records,
            clock=self._node.clock,
        )

    def export_calls(self, note: Callable[[str], None] | None = None) -> "ExportCalls":
        """Return what answers the termini of a catalog; see `calls`."""
        return self._exports.calls(self._lend(note), self._fleet.name)

    def _lend(self, note: Callable[[str], None] | None) -> "Lend":
        return self._kept() if note is None else partial(self.reader, note)

    def _kept(self) -> "Lend":
        """Return what lends one view again and again: opening a file costs more than an answer."""
        view = self.view()

        @asynccontextmanager
        async def lend(_: "RunId | None") -> AsyncGenerator["InventoryReader", None]:
            yield view

        return lend

    async def forget(self, name: "NodeName") -> None:
        """Tell all nodes, in the name of whoever has this root, that a node is forgotten.

        Raises:
            UnavailableError: The bus cannot be asked, or refuses us.
            LocalpuppetError: The identity is refused.
        """
        from localpuppet.bus.layout import FORGOTTEN
        from localpuppet.inventory.tombstone import Tombstone
        from localpuppet.trust.signing import MessageKind

        stone = Tombstone(node=name, at=self._now())
        token = self._fleet.signer.sign(stone.to_payload(), MessageKind.FORGOTTEN)
        async with self._fleet.connected() as kv:
            await kv.put(FORGOTTEN + name, token)

    def _publish_apart(self, *, kicks: bool) -> None:
        """Have a process of its own tell the others, where there is no agent to do it.

        Args:
            kicks: Whether kicks wait; else there may be nothing to tell.
        """
        node = self._node
        if not node.fleet_settings.bus.named or self.agent_is_there():
            return
        if not kicks and self.outbox().is_published():
            return
        from localpuppet.machine.processes import start_apart
        from localpuppet.wiring.puppet_environment import own_words

        start_apart(
            [*own_words(), "--root", str(node.settings.root), "publish"], env=node.environment
        )

    def _offer(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        from localpuppet.inventory.facts import entry_of

        settings, outbox = self._node.settings.inventory, self.outbox()
        before = outbox.entry()
        found = good_run(self._fleet, run, status)
        exports, servers = self._exports.offered(run, before, now=found.at)
        entry = entry_of(replace(found, exports=exports, servers=servers), settings.selection)
        if entry.kicks or entry.queries:
            self._warn_of_cycles(note, before, entry)
        outbox.offer(entry, refresh=settings.refresh)
        # The agent may be about to publish the one before.
        self._exports.keep(before, outbox.entry())

    def _warn_of_cycles(
        self, note: Callable[[str], None], before: "InventoryEntry | None", now: "InventoryEntry"
    ) -> None:
        """Say which cycles a run closes, where there is no agent to look; it reads SQLite.

        A child of the agent must not: SQLite does not survive a fork.
        """
        if self.agent_is_there():
            return
        view = self.view()
        try:
            if self._is_current(view):
                warn_of_cycles(note, before, now, view)
        except LocalpuppetError as error:
            note(f"nobody looked whether this run closes a cycle: {error}")
        finally:
            view.close()

    def _voice(self) -> "Voice":
        from localpuppet.inventory.publishing import Voice

        fleet = self._fleet
        return Voice(
            node=fleet.name,
            signer=fleet.signer,
            verifier=fleet.verifier,
            baggage=self._exports.baggage(fleet.name),
        )

    def _is_current(self, view: "View") -> bool:
        current = view.current_until()
        stale = self._node.settings.inventory.max_stale
        return current is not None and self._now() - current <= stale

    def _is_shared(self, view: "View", run: "RunId") -> bool:
        """Return whether the bus was listed for a run a moment ago, by whom we trust now."""
        from localpuppet.agent.asking import is_shared

        return view.trust == self._trust() and is_shared(
            view.current_until(), begun=run.time.timestamp(), now=self._now()
        )

    def admission(self) -> "EntryAdmission":
        """Return what tells which entries count on this node."""
        from localpuppet.inventory.admission import EntryAdmission

        settings = self._node.settings
        return EntryAdmission(
            self._fleet.verifier,
            claims=settings.inventory.policy,
            policy=settings.policy,
            now=self._now,
        )

    def _now(self) -> float:
        return self._node.clock.now().timestamp()

    def _trust(self) -> str:
        """Return the state of the files that say whom we trust and who may what.

        A key that is pinned or revoked changes its directory.
        """
        settings = self._node.settings
        identity = settings.identity
        policies = (settings.inventory.policy, settings.policy)
        files = (settings.trusted, *policies, identity.ca, identity.crl)
        return " ".join(_stamp(path) for path in files if path is not None)

    def agent_is_there(self) -> bool:
        """Return whether an agent of this node runs."""
        from localpuppet.machine.flock import is_locked

        return is_locked(self._node.settings.state / "agent" / "lock")


class _Notes:
    """A `Log` for a verb: what an operator should know is a note, and nothing else is said."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Say nothing."""

    def warning(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Note it."""
        self._note(text)

    def debug(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Say nothing."""


def _lent(kv: "KeyValue") -> "Store":
    async def store() -> "KeyValue":
        return kv

    return store


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "-"
    return f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}"
