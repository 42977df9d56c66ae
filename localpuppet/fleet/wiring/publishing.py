"""From settings to what a node publishes: its good runs, its kicks, forgotten nodes."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.wiring.exports import ExportsWiring
from localpuppet.fleet.wiring.fleet import FleetWiring, fleet_settings, open_held_kicks, peers
from localpuppet.fleet.wiring.inventory import InventoryWiring, NoteLog, lent
from localpuppet.node.app import NodeApp, program_environment

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName
    from localpuppet.base.machine.ports import Log
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.captures.keeping import CaptureKeeper
    from localpuppet.fleet.catalogs.keeping import CatalogKeeper
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.fleet.inventory.facts import PublishedRun
    from localpuppet.fleet.inventory.outbox import Outbox
    from localpuppet.fleet.inventory.publishing import Publisher, PublisherIdentity
    from localpuppet.fleet.inventory.reading import InventoryReader
    from localpuppet.fleet.triggers.kicks import KickSending
    from localpuppet.fleet.wiring.history import HistoryWiring
    from localpuppet.fleet.wiring.inventory import Store
    from localpuppet.node.runs.records import RunDirectory
    from localpuppet.node.runs.run import Attempt, Status


# Seconds for the search for cycles after a run whose kicks or queries changed.
LOOK = 5.0


def kick_sending(
    fleet: FleetWiring, store: "Callable[[], Awaitable[KeyValue]]", log: Log
) -> "KickSending":
    """Return the service that sends the kicks of finished runs.

    Args:
        fleet: The parts of a fleet node.
        store: Returns the bus, connected.
        log: The log of the service.
    """
    from localpuppet.fleet.triggers.kicks import KickSending

    clock = fleet.node.clock
    held = open_held_kicks(fleet.node)
    return KickSending(held, signer=fleet.signer, store=store, clock=clock, log=log)


def kick_texts(public: Path) -> tuple[str, ...]:
    """Return the queries, without duplicates, for the nodes that a run's catalog kicks.

    Args:
        public: The public directory of the run.

    Raises:
        StateError: The recorded kicks cannot be read.
        InvalidInputError: A record is not a kick.
    """
    from localpuppet.node.puppet.facts import KICKS, read_noted

    kicks = read_noted(public, KICKS)
    if not kicks:
        return ()
    from localpuppet.fleet.triggers.kicks import Kick

    return tuple(dict.fromkeys(text for kick in kicks for text in Kick.read(kick).texts))


def warn_of_cycles(
    note: Callable[[str], None],
    before: "InventoryEntry | None",
    now: "InventoryEntry",
    reader: "InventoryReader",
) -> None:
    """Warn of the cycles that a catalog closes, if its kicks or queries changed.

    Args:
        note: Takes what a person should read.
        before: The node's entry of its last good run.
        now: The node's entry of this run.
        reader: The inventory.

    Raises:
        StateError: The inventory cannot be read.
    """
    from localpuppet.fleet.roles.relations import asks_the_same, closed_cycles

    if not (now.kicks or now.queries) or (before is not None and asks_the_same(before, now)):
        return
    end = time.monotonic() + LOOK
    for cycle in closed_cycles(reader, before, now, lambda: time.monotonic() > end):
        note(f"nodes make each other run: {cycle.shown} ('localpuppet kicks' shows why)")


class CycleWatch:
    """Checks after each good run whether it closed a cycle, as long as an agent lives.

    Args:
        outbox: The node's own entry.
        reader: The entries of other nodes.
        log: The log for warnings.
    """

    def __init__(self, outbox: "Outbox", reader: "InventoryReader", log: Log) -> None:
        self._outbox = outbox
        self._reader = reader
        self._log = log
        self._stamp = outbox.stamp()
        self._before: InventoryEntry | None = None
        self._begun = False

    async def step(self) -> None:
        """Check the node's entry for cycles, if it changed."""
        import asyncio

        stamp = self._outbox.stamp()
        if self._begun and stamp == self._stamp:
            return
        try:
            now = self._outbox.entry()
            if now is not None and self._begun:
                await asyncio.to_thread(warn_of_cycles, self._warn, self._before, now, self._reader)
        except LocalpuppetError as error:
            self._warn(f"could not check whether a run closed a cycle: {error}")
        else:
            self._before = now
        self._stamp, self._begun = stamp, True

    def _warn(self, text: str) -> None:
        self._log.warning(text, kind=LineKind.KICK)


# Seconds that a run without an agent may spend on publishing after its end.
PATIENCE = 60.0


class PublishingWiring:
    """The parts that publish to other nodes.

    Args:
        node: The parts of the node.
        fleet: The parts of a fleet node; built on demand.
    """

    def __init__(self, node: NodeApp, *, fleet: FleetWiring | None = None) -> None:
        self._node = node
        self._fleet = fleet or FleetWiring(node)
        self._inventory = InventoryWiring(node, fleet=self._fleet)
        self._exports = ExportsWiring(node)

    @cached_property
    def _keeper(self) -> "CatalogKeeper":
        from localpuppet.fleet.catalogs.keeping import CatalogKeeper

        return CatalogKeeper(self._node.settings.state)

    @cached_property
    def _history(self) -> "HistoryWiring | None":
        """The history of a node whose settings name a bus; `None` for other nodes."""
        if not fleet_settings(self._node).bus.named:
            return None
        from localpuppet.fleet.wiring.history import HistoryWiring

        return HistoryWiring(self._fleet)

    def after_run(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        """Store a run's summary and the entry of a good whole run, release kicks, and publish all.

        Errors become notes, because the run is over. See `Neighbours.after_run`.

        Args:
            note: Takes what a person should read.
            run: The run.
            status: The run's result.
        """
        with _noted(note):
            if status.good:
                self._offer(note, run, status)
        with _noted(note):
            if self._history is not None:
                from localpuppet.fleet.captures.answers import remove_answers

                remove_answers(run)
                self._history.after_run(run, status)
        with _noted(note):
            self._publish_apart(kicks=open_held_kicks(self._fleet.node).release(run.id))

    def after_refusal(self, note: Callable[[str], None], attempt: "Attempt") -> None:
        """Store the summary of a refused apply, and publish it; see `after_run`."""
        with _noted(note):
            if self._history is not None:
                self._history.after_refusal(attempt)
                self._publish_apart(kicks=False)

    def after_command(
        self, note: Callable[[str], None], user: str, action: str, subject: str
    ) -> None:
        """Store that a user changed the holds on this node, and publish it; see `after_run`."""
        with _noted(note, "this command"):
            if self._history is not None:
                self._history.after_command(user, action, subject)
                self._publish_apart(kicks=False)

    def outbox(self) -> "Outbox":
        """Return the outbox: what the bus is to hold of this node."""
        from localpuppet.fleet.inventory.outbox import Outbox

        return Outbox(self._node.settings.state)

    def publisher(self, store: "Store", log: "Log") -> "Publisher":
        """Return the service that publishes the outbox, as long as an agent lives.

        Args:
            store: Returns the bus, connected.
            log: The log of the service.
        """
        from localpuppet.fleet.inventory.publishing import Publisher

        kicks = kick_sending(self._fleet, store, log)
        history = None if self._history is None else self._history.publisher(store, log)
        cycles = CycleWatch(self.outbox(), self._inventory.view(), log)

        async def then(notified: bool) -> None:
            await kicks.step(notified=notified)
            if history is not None:
                await history.step()
            await cycles.step()

        return Publisher(self.outbox(), self._voice(), store=store, log=log, then=then)

    async def publish(self, note: Callable[[str], None]) -> bool | None:
        """Publish the outbox and the history now, and send the kicks that wait for the outbox.

        Args:
            note: Takes what a person should read.

        Returns:
            Whether the entry was new to the bus; `None` if there is no entry yet.

        Raises:
            UnavailableError: The bus is unreachable, or takes longer than `PATIENCE`.
        """
        import asyncio

        from localpuppet.fleet.inventory.publishing import publish

        outbox = self.outbox()
        payload = outbox.payload()
        history = self._history
        kicks = open_held_kicks(self._fleet.node).are_there
        if payload is None and not kicks and (history is None or history.is_published()):
            return None
        news = None
        try:
            async with asyncio.timeout(PATIENCE), self._fleet.connected() as kv:
                if payload is not None:
                    news = await publish(kv, payload, self._voice())
                    outbox.note_published(payload)
                await kick_sending(self._fleet, lent(kv), NoteLog(note)).step(notified=True)
                if history is not None:
                    await history.publisher(lent(kv), NoteLog(note)).publish()
        except TimeoutError as error:
            raise UnavailableError(
                f"did not accept the entry within {PATIENCE:g} s", where="bus"
            ) from error
        return news

    async def forget(self, name: "NodeName") -> None:
        """Publish, signed by the owner of this root, that a node is forgotten.

        Its exports and its catalog are removed from the bus as well, if the bus allows it.
        """
        from localpuppet.fleet.bus.layout import TOMBSTONES, catalogs_of, exports_of
        from localpuppet.fleet.inventory.admission import Tombstone
        from localpuppet.fleet.inventory.chunks import remove_chunks
        from localpuppet.fleet.trust.signing import MessageKind

        stone = Tombstone(node=name, at=self._node.clock.now().timestamp())
        token = self._fleet.signer.sign(stone.to_payload(), MessageKind.TOMBSTONE)
        async with self._fleet.connected() as kv:
            await kv.put(TOMBSTONES + name, token)
            for prefix in (exports_of(name), catalogs_of(name)):
                await remove_chunks(kv, prefix)

    def _publish_apart(self, *, kicks: bool) -> None:
        """Start a separate process that publishes, unless an agent is running.

        Args:
            kicks: Whether kicks wait; otherwise the process starts only if the entry or the
                history is new.
        """
        node, history = self._node, self._history
        if history is None or self._inventory.agent_is_there():
            return
        if not kicks and self.outbox().is_published() and history.is_published():
            return
        from localpuppet.base.machine.processes import start_apart
        from localpuppet.fleet.wiring.puppet_calls import own_words

        start_apart(
            [*own_words(), "--root", str(node.settings.root), "inventory", "publish"],
            env=program_environment(),
        )

    def _offer(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        from localpuppet.fleet.inventory.facts import entry_of

        settings, outbox = peers(self._node).inventory, self.outbox()
        before = outbox.entry()
        good_run = _good_run(self._fleet, run, status)
        draft = good_run.entry
        exports, servers = self._exports.offered(run, before, now=draft.at)
        draft = replace(draft, exports=exports, servers=servers)
        if self._history is not None:
            draft = self._keep_catalog(note, run, draft)
        if problem := capture_keeper(self._node).keep(run, draft):
            note(f"this run's capture is not kept: {problem}")
        entry = entry_of(replace(good_run, entry=draft), settings.selection)
        if entry.kicks or entry.queries:
            self._warn_of_cycles(note, before, entry)
        outbox.offer(entry, refresh=settings.refresh)
        # The agent may be publishing the previous entry.
        self._exports.keep(before, outbox.entry())
        if self._history is not None:
            self._keeper.clean(before, outbox.entry())

    def _keep_catalog(
        self, note: Callable[[str], None], run: "RunDirectory", published: "InventoryEntry"
    ) -> "InventoryEntry":
        """Keep a good run's catalog; return the entry with it, if this node publishes catalogs."""
        from localpuppet.fleet.catalogs.keeping import CatalogHeader
        from localpuppet.fleet.inventory.entry import CatalogSummary

        header = self._keeper.keep(
            run.public,
            CatalogHeader(
                run=published.run,
                at=published.at,
                release=published.release or "",
                environment=published.environment or "",
                commit=published.commit or "",
            ),
        )
        if header.problem:
            note(f"this run's catalog is not kept: {header.problem}")
        if header.problem or not peers(self._node).inventory.catalogs:
            return published
        summary = CatalogSummary(digest=header.digest, size=header.size, resources=header.resources)
        return replace(published, catalog=summary)

    def _warn_of_cycles(
        self, note: Callable[[str], None], before: "InventoryEntry | None", now: "InventoryEntry"
    ) -> None:
        """Warn of the cycles that a run closes, unless an agent is running, which checks itself.

        A child of the agent must not read the view: SQLite does not survive a fork.
        """
        if self._inventory.agent_is_there():
            return
        view = self._inventory.view()
        try:
            if self._inventory.is_current(view):
                warn_of_cycles(note, before, now, view)
        except LocalpuppetError as error:
            note(f"could not check whether this run closes a cycle: {error}")
        finally:
            view.close()

    def _voice(self) -> "PublisherIdentity":
        from localpuppet.fleet.inventory.publishing import PublisherIdentity

        fleet = self._fleet
        return PublisherIdentity(
            node=fleet.name,
            signer=fleet.signer,
            verifier=fleet.verifier,
            baggage=(self._exports.writer(fleet.name), self._keeper.writer(fleet.name)),
        )


def capture_keeper(node: NodeApp) -> "CaptureKeeper":
    """Return the capture of a node's last good run, as its settings limit it."""
    from localpuppet.fleet.captures.keeping import CaptureKeeper, CaptureRules

    settings = peers(node)
    rules = CaptureRules(selection=settings.inventory.selection, keys=settings.capture.keys)
    return CaptureKeeper(node.settings.state, rules)


@contextmanager
def _noted(note: Callable[[str], None], what: str = "this run") -> Iterator[None]:
    """Turn an error into a note: the run or the command is over."""
    try:
        yield
    except LocalpuppetError as error:
        note(f"{what} was not published: {error}")


def _good_run(fleet: FleetWiring, run: "RunDirectory", status: "Status") -> "PublishedRun":
    """Return what other nodes may learn of a good run, without its exports.

    Args:
        fleet: The parts of a fleet node.
        run: The run.
        status: The run's result.

    Raises:
        StateError: A part of the record cannot be read.
        InvalidInputError: A part of the record is refused.
    """
    from localpuppet.base.formats.names import EnvironmentName, NodeName, ReleasePath
    from localpuppet.base.formats.times import parse_time
    from localpuppet.fleet.exports.recording import read_collected
    from localpuppet.fleet.inventory.entry import CatalogQuery, InventoryEntry, read_components
    from localpuppet.fleet.inventory.facts import PublishedRun, class_names
    from localpuppet.node.enc.instance.facts import withheld
    from localpuppet.node.puppet.facts import COMPONENTS, read_classes, read_facts, read_noted
    from localpuppet.node.releases.tag_memory import TagMemory
    from localpuppet.node.runs.query_record import read_queries

    request = run.read_request()
    paths = (request.get("causes") or {}).get("paths") or [[]]
    memory = TagMemory(fleet.node.settings.state)
    pin = memory.pin(ReleasePath(status.release))
    entry = InventoryEntry(
        node=fleet.name,
        at=parse_time(status.finished_at or status.started_at).timestamp(),
        run=status.id,
        release=status.release,
        environment=EnvironmentName(request["environment"]),
        facts=read_facts(run.public),
        roles=(),
        classes=class_names(read_classes(run.public)),
        paths=tuple(tuple(map(NodeName, path)) for path in paths),
        kicks=kick_texts(run.public),
        components=read_components(read_noted(run.public, COMPONENTS)),
        tagged_at=memory.tagged_at(ReleasePath(status.release)),
        commit=pin.commit if pin is not None else None,
        queries=(
            *(
                CatalogQuery(text=query.text, digest=query.digest)
                for query in read_queries(run)
                if query.digest is not None
            ),
            *(
                CatalogQuery(text=collector.question, digest=collector.digest)
                for collector in read_collected(run)
                if collector.digest is not None
            ),
        ),
    )
    return PublishedRun(
        entry=entry,
        parameters=request["node_document"].get("parameters") or {},
        withheld=withheld(request.get("instance_facts") or ()),
    )
