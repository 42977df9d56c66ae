"""Builds the parts of a fleet node: bus, identity, inventory, what it publishes.

Each part is built at first use and imports what it needs then: a run that publishes nothing pays
for none of them. `agent_app` builds the parts of an agent.
"""

import os
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localpuppet.base.errors import LocalpuppetError, UnavailableError, first_error
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.machine.own_program import own_command, own_words, without_module
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.node.app import NodeApp, program_environment
from localpuppet.node.settings import FILE

if TYPE_CHECKING:
    from localpuppet.fleet.agent.code_calls import ExportCalls, InventoryCalls, Paths, PuppetCalls
    from localpuppet.fleet.agent.entry_lender import EntryLender
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.captures import CaptureKeeper
    from localpuppet.fleet.edges.kicks import HeldKicks, KickSending
    from localpuppet.fleet.exports.held import HeldExports
    from localpuppet.fleet.exports.recording import CollectorRecord, CollectorService
    from localpuppet.fleet.fleet_settings import FleetSettings, PeerSettings
    from localpuppet.fleet.history.history_follower import HistoryBoard, HistoryFollower
    from localpuppet.fleet.history.node_history import NodeHistory
    from localpuppet.fleet.inventory.admission import EntryAdmission
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.fleet.inventory.entry_publisher import PublisherIdentity
    from localpuppet.fleet.inventory.following import ViewFollower
    from localpuppet.fleet.inventory.reading import UnlistedNodes
    from localpuppet.fleet.inventory.view import View
    from localpuppet.fleet.leases.keeper import Keeper
    from localpuppet.fleet.leases.lease import Leases
    from localpuppet.fleet.publishing import NodePublishing
    from localpuppet.fleet.requests.request_client import RequestClient
    from localpuppet.fleet.requests.request_handler import RequestAdmission
    from localpuppet.fleet.triggers.sending import Outgoing, SendResult
    from localpuppet.fleet.trust.identity import SignerIdentity
    from localpuppet.fleet.trust.signing import MessageSigner, Verifier

    Store = Callable[[], Awaitable[KeyValue]]

_Result = TypeVar("_Result")
# Seconds that a command may spend on publishing.
PATIENCE = 60.0


class FleetApp:
    """The parts of a fleet node; the network side passes its name, as it cannot ask Puppet."""

    def __init__(self, node: NodeApp, *, name: NodeName | None = None) -> None:
        self.node = node
        self._name = name

    @cached_property
    def settings(self) -> "FleetSettings":
        """The settings of the bus and the agent."""
        from localpuppet.fleet.fleet_settings import fleet_settings_of

        return self.node.section(fleet_settings_of)

    @cached_property
    def peers(self) -> "PeerSettings":
        """How this node deals with other nodes."""
        from localpuppet.fleet.fleet_settings import peer_settings

        return self.node.section(peer_settings)

    @cached_property
    def name(self) -> NodeName:
        """This node's name: from the settings, or Puppet's certname in lower case.

        Raises:
            InvalidInputError: The name is invalid.
            PuppetMissingError: No file sets the name, and Puppet is not installed.
        """
        if name := self._name or self.settings.node:
            return name
        return NodeName.parse(self.node.require_puppet().settings["certname"].lower())

    @cached_property
    def identity(self) -> "SignerIdentity":
        """The identity of this node, or of the person who owns the root."""
        from localpuppet.fleet.trust.identity import SignerIdentity

        settings = self.peers.identity
        return SignerIdentity(
            node=lambda: self.name,
            named=settings.name,
            key=settings.key,
            certificate_file=settings.certificate,
            ca=settings.ca,
            crl=settings.crl,
            pinned=self.peers.trusted,
            clock=self.node.clock,
        )

    @cached_property
    def signer(self) -> "MessageSigner":
        """Signs as this node, or as the person who owns the root."""
        return self.identity.signer()

    @cached_property
    def verifier(self) -> "Verifier":
        """Verifies signatures of trusted signers."""
        return self.identity.verifier()

    @property
    def state(self) -> Path:
        return self.node.settings.state

    def _now(self) -> float:
        return self.node.clock.now().timestamp()

    # The bus.

    async def connect(self, engine: str | None = None) -> "KeyValue":
        """Return the store, connected.

        Raises:
            UnavailableError: The bus cannot be reached.
            InvalidInputError: The engine is not configured, or its library is not installed.
        """
        from localpuppet.fleet.fleet_settings import require_servers

        bus = self.settings.bus
        name = engine or bus.engine
        if name == "sqlite":
            from localpuppet.fleet.bus.sqlite_bus import open_sqlite

            return await open_sqlite(bus.sqlite, timeout=bus.timeout)
        servers, password = require_servers(bus, name)
        if name == "etcd":
            from localpuppet.fleet.bus.etcd_bus import open_etcd

            return await open_etcd(servers, timeout=bus.timeout, password=password)
        with without_module("importlib.metadata"):  # nats-py's version: 1.5 MiB in each agent
            from localpuppet.fleet.bus.jetstream_messages import inbox_of
            from localpuppet.fleet.bus.nats_bus import open_nats

        inbox = inbox_of(self.identity.name())
        return await open_nats(servers, timeout=bus.timeout, password=password, inbox=inbox)

    @asynccontextmanager
    async def connected(self, engine: str | None = None) -> AsyncGenerator["KeyValue", None]:
        """Lend the store, connected; see `connect`."""
        kv = await self.connect(engine)
        try:
            yield kv
        finally:
            await kv.close()

    def requests(self, kv: "KeyValue") -> "RequestClient":
        """Return the client that sends requests to other nodes over a connected store."""
        from localpuppet.fleet.requests.request_client import RequestClient

        return RequestClient(kv, signer=self.signer, verifier=self.verifier, clock=self.node.clock)

    def paths_of_run(self, run: str | None) -> Iterable[tuple[NodeName, ...]]:
        """Return the paths along which a run may send triggers; see `triggers.sending.paths_of`."""
        from localpuppet.fleet.triggers.sending import paths_of

        return paths_of(self.node.records, run)

    async def send(self, call: "Outgoing", kv: "KeyValue", *, run: str | None) -> "SendResult":
        """Send triggers in this node's name; `run` is the run that sends them, if any."""
        from localpuppet.fleet.triggers import sending

        return await sending.send(
            call,
            kv=kv,
            signer=self.signer,
            paths=self.paths_of_run(run),
            clock=self.node.clock,
            uuid=str(uuid.uuid4()),
        )

    def request_admission(self) -> "RequestAdmission":
        """Return the admission that checks requests to this node."""
        from localpuppet.fleet.requests.request_handler import RequestAdmission
        from localpuppet.fleet.trust.seen import SeenIds

        return RequestAdmission(
            me=self.name,
            verifier=self.identity.verifier(),
            policy=self.peers.policy,
            seen=SeenIds(self.state / "seen.sqlite", self.node.clock),
            clock=self.node.clock,
        )

    def leases(self, kv: "KeyValue", *, holder: str, session: str) -> "Leases":
        """Return the leases on a connected store."""
        from localpuppet.fleet.inventory.reading import outlived
        from localpuppet.fleet.leases.lease import KnownStores, Leases

        async def online(kv: "KeyValue", born: float) -> bool:
            return outlived(await self.online(kv), born)

        stores = KnownStores(path=self.state / "bus.json", online=online)
        return Leases(kv, self.node.clock, holder=holder, session=session, stores=stores)

    async def online(self, kv: "KeyValue") -> dict[str, dict[str, Any]]:
        """Return what the nodes that are online publish about themselves, verified."""
        from localpuppet.fleet.inventory import presence

        tokens = await presence.nodes(kv)
        return {name: presence.believe(self.verifier, name, tokens[name]) for name in tokens}

    # The inventory and the exports of other nodes.

    @property
    def held_exports(self) -> "HeldExports":
        """This node's copy of what other nodes export."""
        from localpuppet.fleet.exports import held

        return held.HeldExports(self.state / held.FILE)

    def view(self) -> "View":
        """Open this node's copy of the entries."""
        from localpuppet.fleet.inventory import view

        return view.View(
            self.state / view.FILE,
            now=self._now,
            expire=self.peers.inventory.expire,
            exports=self.held_exports,
        )

    def admission(self) -> "EntryAdmission":
        """Return the admission that decides which entries count on this node."""
        from localpuppet.fleet.inventory.admission import EntryAdmission

        return EntryAdmission(
            self.verifier,
            claims=self.peers.inventory.policy,
            policy=self.peers.policy,
            now=self._now,
        )

    def follower(
        self, store: "Store", log: Log, *, changed: Callable[[], None] = lambda: None
    ) -> "ViewFollower":
        """Return the service that keeps the view current; `changed` is called after a change."""
        from localpuppet.fleet.bus.layout import INVENTORY
        from localpuppet.fleet.exports.held import ExportsFollower
        from localpuppet.fleet.inventory.following import ViewFollower

        view = self.view()
        return ViewFollower(
            view,
            store=store,
            admission=self.admission(),
            trust=self.entries.trust,
            probe=INVENTORY + self.name,
            companion=ExportsFollower(view, self.held_exports, log=log),
            online=self.online,
            clock=self.node.clock,
            log=log,
            changed=changed,
        )

    async def unlisted(self) -> "UnlistedNodes":
        """Return the nodes that are online and have no entry in the view, which was read before."""
        async with self.connected() as kv:
            follower = self.follower(lent(kv), NoteLog(lambda _text: None))
            try:
                return await follower.unlisted(kv)
            finally:
                follower.view.close()

    @cached_property
    def entries(self) -> "EntryLender":
        """Lends the entries of other nodes to commands and Puppet code."""
        from localpuppet.fleet.agent.entry_lender import EntryLender

        async def list_bus(note: Callable[[str], None]) -> "UnlistedNodes":
            async with self.connected() as kv:
                return await self.follower(lent(kv), NoteLog(note)).list_once()

        peers = self.peers
        identity = peers.identity
        return EntryLender(
            self.view,
            list_bus=list_bus,
            require_bus=self.require_bus,
            trusts=(
                *(peers.trusted, peers.inventory.policy, peers.policy),
                *(identity.ca, identity.crl),
            ),
            max_stale=peers.inventory.max_stale,
            state=self.state,
            clock=self.node.clock,
        )

    def require_bus(self, nodes: Sequence[str] = ()) -> None:
        """Refuse a question that the root's own empty bus would answer with "none"."""
        if not self.settings.bus.named:
            raise UnavailableError(
                f"cannot ask {shown_names(nodes) or 'other nodes'}: no bus is configured",
                where=str(self.node.settings.root / FILE),
                hint="write 'bus:' there, or name another root with --root or LOCALPUPPET_ROOT",
            )

    def collecting(self, name: NodeName | None = None) -> "CollectorService":
        from localpuppet.fleet.exports.recording import CollectorService

        policy = self.peers.collect_policy
        return CollectorService(self.held_exports, me=name or self.name, policy=policy)

    def would_take(self) -> "list[CollectorRecord]":
        """Return what the collectors of the newest run would collect now, by the current policy."""
        from localpuppet.fleet.exports.recording import read_collected

        before = read_collected(self.node.records.get(None)) if self.node.records.ids() else []
        return self.collecting().again(before) if before else []

    # Calls of Puppet code.

    def inventory_calls(self, note: Callable[[str], None] | None = None) -> "InventoryCalls":
        """Return the service that answers Puppet's questions about other nodes.

        Args:
            note: Takes what a person should read; `None` in the agent, which keeps the view.
        """
        from localpuppet.fleet.agent.code_calls import InventoryCalls

        return InventoryCalls(
            self.entries.lend(note),
            max_stale=self.peers.inventory.max_stale,
            records=self.node.records,
            clock=self.node.clock,
        )

    def export_calls(self, note: Callable[[str], None] | None = None) -> "ExportCalls":
        """Return the service that answers the termini of a catalog; see `inventory_calls`."""
        from localpuppet.fleet.agent.code_calls import ExportCalls

        return ExportCalls(
            self.entries.lend(note),
            self.collecting(),
            max_stale=self.peers.inventory.max_stale,
            records=self.node.records,
            clock=self.node.clock,
        )

    def puppet_calls(
        self,
        *,
        store: "Callable[[str | None], AbstractAsyncContextManager[KeyValue]]",
        paths: "Paths",
        note: Callable[[str], None] | None = None,
        keeper: "Keeper | None" = None,
    ) -> "PuppetCalls":
        """Return the service that answers Puppet code; see `Sender` and `inventory_calls`.

        A process that cannot renew leases has no `keeper`.
        """
        from localpuppet.fleet.agent.code_calls import PuppetCalls, Sender, TriggerCalls

        sender = Sender(
            store=store,
            signer=self.signer,
            paths=paths,
            keyprefix=self.settings.agent.keyprefix,
            clock=self.node.clock,
        )
        inventory = self.inventory_calls(note)
        return PuppetCalls(
            triggers=TriggerCalls(sender, inventory=inventory, held=self.held_kicks),
            inventory=inventory,
            exports=self.export_calls(note),
            keeper=keeper,
            records=self.node.records,
            name=self.signer.name,
        )

    @property
    def own_variables(self) -> dict[str, str]:
        """The environment variables by which Puppet code of a run reaches localpuppet."""
        always = {"LOCALPUPPET_KICK": "always"} if self.peers.kick_always else {}
        return {
            "LOCALPUPPET_ROOT": str(self.node.settings.root),
            "LOCALPUPPET_SOCKET": str(self.peers.socket),
            "LOCALPUPPET_COMMAND": own_command(),
            **always,
        }

    # What this node publishes.

    @cached_property
    def held_kicks(self) -> "HeldKicks":
        """The kicks that wait until their run is over."""
        from localpuppet.fleet.edges.kicks import HeldKicks

        return HeldKicks(self.state, self.node.records, self.node.clock)

    def kick_sending(self, store: "Store", log: Log) -> "KickSending":
        """Return the service that sends the kicks of finished runs."""
        from localpuppet.fleet.edges.kicks import KickSending

        held, clock = self.held_kicks, self.node.clock
        return KickSending(held, signer=self.signer, store=store, clock=clock, log=log)

    @cached_property
    def captures(self) -> "CaptureKeeper":
        """The capture of the last good run, as the settings limit it."""
        from localpuppet.fleet.captures import CaptureKeeper, CaptureRules

        peers = self.peers
        rules = CaptureRules(selection=peers.inventory.selection, keys=peers.capture.keys)
        return CaptureKeeper(self.state, rules)

    @cached_property
    def history(self) -> "NodeHistory":
        """The history that a node publishes if its settings name a bus."""
        from localpuppet.fleet.history.node_history import NodeHistory

        return NodeHistory(
            self.state,
            name=lambda: self.name,
            records=self.node.records,
            interval=lambda: (
                self.settings.agent.run_interval if self.entries.agent_is_there() else None
            ),
            clock=self.node.clock,
        )

    def history_follower(
        self, board: "HistoryBoard", store: "Store", log: Log
    ) -> "HistoryFollower":
        """Return the service that passes the history of all nodes to a board."""
        from localpuppet.fleet.history.history_follower import HistoryFollower

        clock = self.node.clock
        return HistoryFollower(board, self.verifier, store=store, clock=clock, log=log)

    @cached_property
    def publishing(self) -> "NodePublishing":
        """What runs and commands of this node leave for other nodes."""
        from localpuppet.fleet.publishing import NodePublishing

        return NodePublishing(
            name=lambda: self.name,
            state=self.state,
            settings=self.peers,
            captures=self.captures,
            history=self.history if self.settings.bus.named else None,
            agent_is_there=self.entries.agent_is_there,
            look_for_cycles=self._look_for_cycles,
            start=self._publish_apart,
        )

    def publisher_identity(self) -> "PublisherIdentity":
        """Return who publishes this node's entry, and what accompanies it."""
        from localpuppet.fleet.exports.held import exports_writer
        from localpuppet.fleet.inventory.entry_publisher import PublisherIdentity

        name, publishing = self.name, self.publishing
        return PublisherIdentity(
            node=name,
            signer=self.signer,
            verifier=self.verifier,
            baggage=(
                exports_writer(name, publishing.exports),
                publishing.catalogs.writer(name),
            ),
        )

    async def publish(self, note: Callable[[str], None]) -> bool | None:
        """Publish the outbox and the history now, and send the kicks that wait for the outbox.

        Return whether the entry was new to the bus; `None` if there is no entry yet.

        Raises:
            UnavailableError: The bus is unreachable, or takes longer than `PATIENCE`.
        """
        import asyncio

        from localpuppet.fleet.inventory.entry_publisher import publish

        outbox, history = self.publishing.outbox, self.publishing.history
        payload = outbox.payload()
        waits = payload is not None or self.held_kicks.are_there
        if not waits and (history is None or history.is_published()):
            return None
        news = None
        try:
            async with asyncio.timeout(PATIENCE), self.connected() as kv:
                store, log = lent(kv), NoteLog(note)
                if payload is not None:
                    news = await publish(kv, payload, self.publisher_identity())
                    outbox.note_published(payload)
                await self.kick_sending(store, log).step(notified=True)
                if history is not None:
                    await history.publisher(self.signer, store, log).publish()
        except TimeoutError as error:
            raise UnavailableError(
                f"did not accept the entry within {PATIENCE:g} s", where="bus"
            ) from error
        return news

    async def forget(self, name: NodeName) -> None:
        """Publish that a node is forgotten; see `publishing.forget`."""
        from localpuppet.fleet.publishing import forget

        self.require_bus()
        signer = self.signer
        async with self.connected() as kv:
            await forget(kv, name, signer=signer, now=self._now())

    def _publish_apart(self) -> None:
        from localpuppet.base.machine.processes import start_apart

        root = str(self.node.settings.root)
        start_apart(
            [*own_words(), "--root", root, "inventory", "publish"], env=program_environment()
        )

    def _look_for_cycles(
        self,
        note: Callable[[str], None],
        before: "InventoryEntry | None",
        now: "InventoryEntry",
    ) -> None:
        from localpuppet.fleet.edges.cycles import warn_of_cycles

        view = self.view()
        try:
            if self.entries.is_current(view):
                warn_of_cycles(note, before, now, view)
        except LocalpuppetError as error:
            note(f"could not check whether this run closes a cycle: {error}")
        finally:
            view.close()


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end; of a group of errors, raise the first."""
    import asyncio  # 30 ms, also with ssl: a run that publishes nothing does not need it

    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from group


class NoteLog:
    """A `Log` for a command: passes warnings on as notes, and drops everything else."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Drop the line."""

    def warning(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        self._note(text)

    debug = info


def lent(kv: "KeyValue") -> "Store":
    """Return a function that returns a bus that is connected already."""

    async def store() -> "KeyValue":
        return kv

    return store


def machine_name() -> str:
    """Return this machine's own name, on one line of at most 253 characters."""
    return one_line(os.uname().nodename)[:253] or "a machine without a name"
