"""Follow the history of all nodes on the bus: verified days for a board."""

from collections.abc import Sequence
from typing import Protocol

from localpuppet.fleet.history.audit_record import AuditRecord
from localpuppet.fleet.history.day import HistoryDay
from localpuppet.fleet.history.run_summary import RunSummary


class HistoryBoard(Protocol):
    """Receives verified days of history; called in the event loop, one call at a time.

    A day comes again whenever its node adds a record, so a record comes many times: the board
    replaces runs by node and `run`, and audit records by node and `identity`. A later day or a
    restart of the node's log may lack records that came before; the board keeps them.

    `take_runs` and `take_audit` end when the records are stored, so at most one batch waits in
    memory. A follower must await them before it calls `note_taken`.
    """

    def is_taken(self, key: str, digest: bytes) -> bool:
        """Return whether the board stored this value before, so that it is not verified again.

        Args:
            key: The key on the bus.
            digest: SHA-256 of the value.
        """
        ...

    def note_taken(self, key: str, digest: bytes) -> None:
        """Record that the board has everything in a value; see `is_taken`."""
        ...

    async def take_runs(self, days: Sequence[HistoryDay[RunSummary]]) -> None:
        """Store run summaries."""
        ...

    async def take_audit(self, days: Sequence[HistoryDay[AuditRecord]]) -> None:
        """Store audit records."""
        ...
