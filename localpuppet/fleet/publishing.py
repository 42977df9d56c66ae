"""What this node publishes: its good runs, its history, and that other nodes are forgotten.

A run only writes to the state directory. The agent publishes it; without an agent, a separate
process does. Imports of the bus are deferred: they take 30 ms, for which a run of a lone node would
have to wait.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import EnvironmentName, NodeName, ReleasePath
from localpuppet.base.formats.times import parse_time
from localpuppet.base.machine.files import is_file
from localpuppet.fleet.captures import CaptureKeeper, remove_answers
from localpuppet.fleet.exports.collectors import servers_of
from localpuppet.fleet.exports.recording import offer_exports, read_collected
from localpuppet.fleet.fleet_settings import PeerSettings
from localpuppet.fleet.inventory.chunks import ChunkOutbox
from localpuppet.fleet.inventory.entry import (
    CatalogQuery,
    CatalogSummary,
    InventoryEntry,
    NotedComponent,
    read_components,
)
from localpuppet.fleet.inventory.facts import PublishedRun, class_names, entry_of
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.node.enc.instance_facts import withheld
from localpuppet.node.puppet.report import COMPONENTS, KICKS, read_classes, read_facts, read_noted
from localpuppet.node.releases.release_records import TagMemory
from localpuppet.node.runs.query_record import read_queries
from localpuppet.node.runs.run import Attempt, Status
from localpuppet.node.runs.run_records import RunDirectory

if TYPE_CHECKING:
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.history.node_history import NodeHistory
    from localpuppet.fleet.kept_catalogs import CatalogKeeper
    from localpuppet.fleet.trust.signing import MessageSigner

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePublishing:
    """What runs and commands of this node leave for other nodes.

    Errors become notes, because the run or command is over. `history` is `None` without a bus;
    `look_for_cycles` notes the cycles that an entry closes, given the entry before.
    """

    name: Callable[[], NodeName]
    state: Path
    settings: PeerSettings
    captures: CaptureKeeper
    history: "NodeHistory | None"
    agent_is_there: Callable[[], bool]
    look_for_cycles: Callable[[Note, InventoryEntry | None, InventoryEntry], None]
    start: Callable[[], None]

    @property
    def outbox(self) -> Outbox:
        """What the bus is to hold of this node."""
        return Outbox(self.state)

    @property
    def exports(self) -> ChunkOutbox:
        """The exports of the entries that are or will be on the bus."""
        return ChunkOutbox(self.state / "exports")

    @property
    def catalogs(self) -> "CatalogKeeper":
        """The catalog of the last good run."""
        from localpuppet.fleet.kept_catalogs import CatalogKeeper

        return CatalogKeeper(self.state)

    def after_run(
        self, note: Note, run: RunDirectory, status: Status, *, release: Callable[[], bool]
    ) -> None:
        """Store a run's summary and the entry of a good whole run, release kicks, and publish all.

        Args:
            release: Releases the kicks of the run; returns whether kicks wait.
        """
        with _noted(note):
            if status.good:
                self._offer(note, run, status)
        with _noted(note):
            if self.history is not None:
                remove_answers(run)
                self.history.after_run(run, status)
        with _noted(note):
            self._publish_apart(kicks=release())

    def after_refusal(self, note: Note, attempt: Attempt) -> None:
        """Store the summary of a refused apply, and publish it; see `after_run`."""
        with _noted(note):
            if self.history is not None:
                self.history.after_refusal(attempt)
                self._publish_apart(kicks=False)

    def after_command(self, note: Note, user: str, action: str, subject: str) -> None:
        """Store that a user changed the holds on this node, and publish it; see `after_run`."""
        with _noted(note, "this command"):
            if self.history is not None:
                self.history.after_command(user, action, subject)
                self._publish_apart(kicks=False)

    def _publish_apart(self, *, kicks: bool) -> None:
        """Publish in a separate process, unless an agent is running or nothing is new."""
        if self.history is None or self.agent_is_there():
            return
        if kicks or not (self.outbox.is_published() and self.history.is_published()):
            self.start()

    def _offer(self, note: Note, run: RunDirectory, status: Status) -> None:
        outbox, before = self.outbox, self.outbox.entry()
        good_run = _good_run(self.name(), TagMemory(self.state), run, status)
        draft = good_run.entry
        exports, resources = offer_exports(self.exports, run, before, now=draft.at)
        draft = replace(
            draft, exports=exports, servers=servers_of(resources), sealing=self._sealing()
        )
        if self.history is not None:
            draft = self._keep_catalog(note, run, draft)
        if problem := self.captures.keep(run, draft):
            note(f"this run's capture is not kept: {problem}")
        settings = self.settings.inventory
        entry = entry_of(replace(good_run, entry=draft), settings.selection)
        # An agent checks itself; its child must not read the view: SQLite does not survive a fork.
        if (entry.kicks or entry.queries) and not self.agent_is_there():
            self.look_for_cycles(note, before, entry)
        outbox.offer(entry, refresh=settings.refresh)
        # The agent may be publishing the previous entry.
        kept = [one for one in (before, outbox.entry()) if one is not None]
        self.exports.keep({one.exports.digest for one in kept if one.exports.digest is not None})
        if self.history is not None:
            self.catalogs.clean(before, outbox.entry())

    def _sealing(self) -> tuple[str, ...]:
        """Return the recipients of this node's sealing key; a node without one imports nothing."""
        if not (self.state / "keys" / "sealing.pub").exists():
            return ()
        from localpuppet.node.sealed.age import SealingKey

        return SealingKey(self.state / "keys").recipients()

    def _keep_catalog(
        self, note: Note, run: RunDirectory, published: InventoryEntry
    ) -> InventoryEntry:
        """Keep a good run's catalog; return the entry with it, if this node publishes catalogs."""
        from localpuppet.fleet.kept_catalogs import CatalogHeader

        header = self.catalogs.keep(
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
        if header.problem or not self.settings.inventory.catalogs:
            return published
        summary = CatalogSummary(digest=header.digest, size=header.size, resources=header.resources)
        return replace(published, catalog=summary)


async def forget(kv: "KeyValue", name: NodeName, *, signer: "MessageSigner", now: float) -> None:
    """Publish, signed by the owner of this root, that a node is forgotten.

    Its exports and its catalog are removed from the bus as well, if the bus allows it.
    """
    from localpuppet.fleet.bus.layout import TOMBSTONES, catalogs_of, exports_of
    from localpuppet.fleet.inventory.admission import Tombstone
    from localpuppet.fleet.inventory.chunks import remove_chunks
    from localpuppet.fleet.trust.signing import MessageKind

    stone = Tombstone(node=name, at=now)
    await kv.put(TOMBSTONES + name, signer.sign(stone.to_payload(), MessageKind.TOMBSTONE))
    for prefix in (exports_of(name), catalogs_of(name)):
        await remove_chunks(kv, prefix)


@contextmanager
def _noted(note: Note, what: str = "this run") -> Iterator[None]:
    """Turn an error into a note."""
    try:
        yield
    except LocalpuppetError as error:
        note(f"{what} was not published: {error}")


def _good_run(node: NodeName, memory: TagMemory, run: RunDirectory, status: Status) -> PublishedRun:
    """Return what other nodes may learn of a good run, without its exports."""
    request = run.read_request()
    paths = (request.get("causes") or {}).get("paths") or [[]]
    pin = memory.pin(ReleasePath(status.release))
    asked = [
        *((query.text, query.digest) for query in read_queries(run)),
        *((collector.question, collector.digest) for collector in read_collected(run)),
    ]
    entry = InventoryEntry(
        node=node,
        at=parse_time(status.finished_at or status.started_at).timestamp(),
        run=status.id,
        release=status.release,
        environment=EnvironmentName(request["environment"]),
        facts=read_facts(run.public),
        roles=(),
        classes=class_names(read_classes(run.public)),
        paths=tuple(tuple(map(NodeName, path)) for path in paths),
        kicks=_kick_texts(run.public),
        components=read_components(read_noted(run.public, COMPONENTS, NotedComponent)),
        tagged_at=memory.tagged_at(ReleasePath(status.release)),
        commit=pin.commit if pin is not None else None,
        queries=tuple(
            CatalogQuery(text=text, digest=digest) for text, digest in asked if digest is not None
        ),
    )
    return PublishedRun(
        entry=entry,
        parameters=request["node_document"].get("parameters") or {},
        withheld=withheld(request.get("instance_facts") or ()),
    )


def _kick_texts(public: Path) -> tuple[str, ...]:
    """Return the queries, without duplicates, for the nodes that a run's catalog kicks."""
    if not is_file(public / KICKS):
        return ()
    from localpuppet.fleet.edges.kicks import NotedKick

    kicks = read_noted(public, KICKS, NotedKick)
    return tuple(dict.fromkeys(text for kick in kicks for text in kick.texts))
