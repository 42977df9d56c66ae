"""From settings to the inventory: this node's view of other nodes' entries, and its readers."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.wiring.exports import ExportsWiring
from localpuppet.fleet.wiring.fleet import FleetWiring, fleet_settings, peers
from localpuppet.node.app import NodeApp
from localpuppet.node.settings.node import FILE

if TYPE_CHECKING:
    from localpuppet.base.formats.names import RunId
    from localpuppet.fleet.agent.puppet_calls import ExportCalls, InventoryCalls
    from localpuppet.fleet.agent.request_service import Lend
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.inventory.admission import EntryAdmission
    from localpuppet.fleet.inventory.following import ViewFollower
    from localpuppet.fleet.inventory.reading import InventoryAnswer, InventoryReader, UnlistedNodes
    from localpuppet.fleet.inventory.view import View
    from localpuppet.fleet.leases.lease import KnownStores

    Store = Callable[[], Awaitable[KeyValue]]

T = TypeVar("T")


class InventoryWiring:
    """The parts that read the inventory; `PublishingWiring` has those that publish.

    Args:
        node: The parts of the node.
        fleet: The parts of a fleet node; built on demand.
    """

    def __init__(self, node: NodeApp, *, fleet: FleetWiring | None = None) -> None:
        self._node = node
        self._fleet = fleet or FleetWiring(node)
        self._exports = ExportsWiring(node)

    def view(self) -> "View":
        """Return this node's copy of the entries."""
        from localpuppet.fleet.inventory.view import FILE, View

        settings = self._node.settings
        return View(
            settings.state / FILE,
            now=self._now,
            expire=peers(self._node).inventory.expire,
            exports=self._exports.held(),
        )

    def follower(
        self, store: "Store", log: Log, *, changed: Callable[[], None] = lambda: None
    ) -> "ViewFollower":
        """Return the service that keeps the view current; see `ViewFollower`.

        Args:
            store: Returns the bus, connected.
            log: The log of the service.
            changed: Called after the view may have changed.
        """
        from localpuppet.fleet.bus.layout import INVENTORY
        from localpuppet.fleet.inventory.following import Sources, ViewFollower

        view = self.view()
        sources = Sources(
            store=store,
            admission=self.admission(),
            trust=self._trust,
            probe=INVENTORY + self._fleet.name,
            companion=self._exports.follower(view, log),
            online=partial(_online, self._fleet),
        )
        return ViewFollower(view, sources, clock=self._node.clock, log=log, changed=changed)

    async def unlisted(self) -> "UnlistedNodes":
        """Return the nodes that are online and have no entry in the view, which was read before.

        Raises:
            UnavailableError: The bus is unreachable.
        """
        async with self._fleet.connected() as kv:
            follower = self.follower(lent(kv), NoteLog(lambda _text: None))
            try:
                return await follower.unlisted(kv)
            finally:
                follower.view.close()

    @asynccontextmanager
    async def reader(
        self, note: Callable[[str], None], run: "RunId | None" = None, *, warns: bool = True
    ) -> AsyncGenerator["View", None]:
        """Lend the entries: from the view that an agent keeps current, else listed from the bus.

        The age of the view decides whether it may be queried: see `ask`. If an agent is running
        while the bus is unreachable, the agent's view ages.

        Args:
            note: Takes what a person should read.
            run: The run that queries during compilation. Without an agent, its queries share one
                listing, and so see one moment.
            warns: Whether to note nodes that are online without an entry.

        Raises:
            UnavailableError: The settings name no bus; without an agent, the bus is unreachable; or
                the view cannot be read or written.
        """
        self._require_bus()
        view = self.view()
        try:
            there = self.agent_is_there() and self.is_current(view)
            if not (there or (run is not None and self._is_shared(view, run))):
                async with self._fleet.connected() as kv:
                    unlisted = await self.follower(lent(kv), NoteLog(note)).list_once()
                if unlisted.names and warns and run is None:
                    note(f"online without an entry of a good run: {shown_names(unlisted.names)}")
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
    ) -> "InventoryAnswer[T]":
        """Return the answer to a question.

        Raises:
            UnavailableError: The view is too old, or cannot be read.
        """
        from localpuppet.fleet.inventory.reading import must_ask

        return must_ask(
            reader,
            question,
            now=self._now(),
            max_stale=peers(self._node).inventory.max_stale,
            hint="check that the bus is reachable",
        )

    def calls(self, note: Callable[[str], None] | None = None) -> "InventoryCalls":
        """Return the service that answers Puppet's questions about other nodes.

        Args:
            note: Takes what a person should read; `None` in the agent, which keeps the view.
        """
        from localpuppet.fleet.agent.puppet_calls import InventoryCalls

        return InventoryCalls(
            self._lend(note),
            max_stale=peers(self._node).inventory.max_stale,
            records=self._node.records,
            clock=self._node.clock,
        )

    def export_calls(self, note: Callable[[str], None] | None = None) -> "ExportCalls":
        """Return the service that answers the termini of a catalog; see `calls`."""
        return self._exports.calls(self._lend(note), self._fleet.name)

    def _lend(self, note: Callable[[str], None] | None) -> "Lend":
        return self._kept() if note is None else partial(self.reader, note)

    def _kept(self) -> "Lend":
        """Return a function that lends the same open view: opening costs more than an answer."""
        from localpuppet.fleet.agent.request_service import FirstListing

        view = self.view()
        listing = FirstListing(partial(self.is_current, view), self._node.clock)

        @asynccontextmanager
        async def lend(_: "RunId | None") -> AsyncGenerator["InventoryReader", None]:
            self._require_bus()
            await listing.wait()
            yield view

        return lend

    def _require_bus(self) -> None:
        """Refuse a question that the root's own empty bus would answer with "none".

        Raises:
            UnavailableError: The settings name no bus, so no node publishes on one.
        """
        if not fleet_settings(self._node).bus.named:
            raise UnavailableError(
                "cannot ask other nodes: no bus is configured",
                where=str(self._node.settings.root / FILE),
                hint="write 'bus:' there, or name another root with --root or LOCALPUPPET_ROOT",
            )

    def is_current(self, view: "View") -> bool:
        """Return whether a view is recent enough for queries."""
        current = view.current_until()
        stale = peers(self._node).inventory.max_stale
        return current is not None and self._now() - current <= stale

    def _is_shared(self, view: "View", run: "RunId") -> bool:
        """Return whether the bus was listed for a run a moment ago, under the current trust."""
        from localpuppet.fleet.agent.request_service import is_shared

        return view.trust == self._trust() and is_shared(
            view.current_until(), begun=run.time.timestamp(), now=self._now()
        )

    def admission(self) -> "EntryAdmission":
        """Return the admission that decides which entries count on this node."""
        from localpuppet.fleet.inventory.admission import EntryAdmission

        settings = peers(self._node)
        return EntryAdmission(
            self._fleet.verifier,
            claims=settings.inventory.policy,
            policy=settings.policy,
            now=self._now,
        )

    def _now(self) -> float:
        return self._node.clock.now().timestamp()

    def _trust(self) -> str:
        """Return a stamp of the trusted keys and the policies; it differs after each change.

        A key that is pinned or revoked changes its directory.
        """
        settings = peers(self._node)
        identity = settings.identity
        policies = (settings.inventory.policy, settings.policy)
        files = (settings.trusted, *policies, identity.ca, identity.crl)
        return " ".join(_stamp(path) for path in files if path is not None)

    def agent_is_there(self) -> bool:
        """Return whether an agent of this node is running."""
        from localpuppet.base.machine.flock import is_locked

        return is_locked(self._node.settings.state / "agent" / "lock")


class NoteLog:
    """A `Log` for a command: passes warnings on as notes, and drops everything else."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Drop the line."""

    def warning(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Pass the warning on as a note."""
        self._note(text)

    def debug(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Drop the line."""


def lent(kv: "KeyValue") -> "Store":
    """Return a function that returns a bus that is connected already."""

    async def store() -> "KeyValue":
        return kv

    return store


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "-"
    return f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}"


def known_stores(fleet: FleetWiring) -> "KnownStores":
    """Return what this node and the online agents know of earlier stores of the bus."""
    from localpuppet.fleet.inventory.reading import outlived
    from localpuppet.fleet.leases.lease import KnownStores

    async def online(kv: "KeyValue", born: float) -> bool:
        return outlived(await _online(fleet, kv), born)

    return KnownStores(path=fleet.node.settings.state / "bus.json", online=online)


async def _online(fleet: FleetWiring, kv: "KeyValue") -> dict[str, dict[str, Any]]:
    """Return what the nodes that are online publish about themselves."""
    from localpuppet.fleet.inventory import presence

    tokens = await presence.nodes(kv)
    return {name: presence.believe(fleet.verifier, name, tokens[name]) for name in tokens}
