"""From settings to exported resources: what a run exports, and what other nodes export."""

from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.fleet.wiring.fleet import peers
from localpuppet.node.app import NodeApp

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName
    from localpuppet.base.machine.ports import Log
    from localpuppet.fleet.agent.puppet_calls import ExportCalls
    from localpuppet.fleet.agent.request_service import Lend
    from localpuppet.fleet.exports.collecting import CollectorService
    from localpuppet.fleet.exports.held import ExportsFollower, HeldExports
    from localpuppet.fleet.exports.recording import CollectorRecord
    from localpuppet.fleet.exports.resource import ExportedResource
    from localpuppet.fleet.inventory.chunks import ChunkOutbox, ChunkWriter
    from localpuppet.fleet.inventory.entry import ExportedServer, ExportsSummary, InventoryEntry
    from localpuppet.fleet.inventory.view import View
    from localpuppet.node.runs.records import RunDirectory


class ExportsWiring:
    """The parts of exported resources.

    Args:
        node: The parts of the node.
    """

    def __init__(self, node: NodeApp) -> None:
        self._node = node

    def held(self) -> "HeldExports":
        """Return this node's copy of what other nodes export."""
        from localpuppet.fleet.exports.held import FILE, HeldExports

        return HeldExports(self._node.settings.state / FILE)

    def follower(self, view: "View", log: "Log") -> "ExportsFollower":
        """Return the service that updates `held` from the entries in a view.

        Args:
            view: The entries.
            log: The log of the service.
        """
        from localpuppet.fleet.exports.held import ExportsFollower

        return ExportsFollower(view, self.held(), log=log)

    def writer(self, name: "NodeName") -> "ChunkWriter":
        """Return the service that publishes this node's exports."""
        from localpuppet.fleet.exports.held import exports_writer

        return exports_writer(name, self._outbox())

    def offered(
        self, run: "RunDirectory", before: "InventoryEntry | None", *, now: float
    ) -> "tuple[ExportsSummary, tuple[ExportedServer, ...]]":
        """Store a good run's exports, for publishing; return the summary for its entry.

        Args:
            run: The run.
            before: The entry until now.
            now: Seconds since 1970, UTC.

        Raises:
            InvalidInputError: The exports are too many or too large.
        """
        from localpuppet.fleet.exports.policy import servers_of
        from localpuppet.fleet.exports.recording import read_exports
        from localpuppet.fleet.exports.resource import aged, pack
        from localpuppet.fleet.inventory.entry import ExportsSummary

        resources = aged(read_exports(run), self._exported(before), now=now)
        packed = pack(resources)
        if packed.count:
            self._outbox().write(packed.data)
        summary = ExportsSummary(
            count=packed.count, digest=packed.digest or None, size=len(packed.data)
        )
        return summary, servers_of(resources)

    def keep(self, *entries: "InventoryEntry | None") -> None:
        """Remove stored exports that none of the entries names."""
        digests = {entry.exports.digest for entry in entries if entry is not None}
        self._outbox().keep({digest for digest in digests if digest is not None})

    def collecting(self, name: "NodeName") -> "CollectorService":
        """Return the service that answers collectors of this node."""
        from localpuppet.fleet.exports.collecting import CollectorService

        return CollectorService(self.held(), me=name, policy=peers(self._node).collect_policy)

    def would_take(self, name: "NodeName") -> "list[CollectorRecord]":
        """Return what the collectors of the newest run would collect now, by the current policy."""
        from localpuppet.fleet.exports.recording import read_collected

        records = self._node.records
        before = read_collected(records.get(None)) if records.ids() else []
        return self.collecting(name).again(before) if before else []

    def calls(self, lend: "Lend", name: "NodeName") -> "ExportCalls":
        """Return the service that answers the termini of a catalog.

        Args:
            lend: Lends the entries.
            name: This node.
        """
        from localpuppet.fleet.agent.puppet_calls import ExportCalls

        return ExportCalls(
            lend,
            self.collecting(name),
            max_stale=peers(self._node).inventory.max_stale,
            records=self._node.records,
            clock=self._node.clock,
        )

    def _outbox(self) -> "ChunkOutbox":
        from localpuppet.fleet.inventory.chunks import ChunkOutbox

        return ChunkOutbox(self._node.settings.state / "exports")

    def _exported(self, before: "InventoryEntry | None") -> "tuple[ExportedResource, ...]":
        from localpuppet.fleet.exports.resource import unpack

        digest = None if before is None else before.exports.digest
        if digest is None:
            return ()
        try:
            return unpack(self._outbox().read(digest))
        except (InvalidInputError, StateError):
            return ()  # this loses only the times of the first exports
