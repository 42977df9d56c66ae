"""From settings to a node's history: its logs, its publisher, and a follower of all nodes."""

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.wiring.fleet import FleetWiring
from localpuppet.fleet.wiring.settings import fleet_settings
from localpuppet.node.wiring.state import open_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localpuppet.base.machine.ports import Log
    from localpuppet.fleet.history.audit_record import AuditRecord
    from localpuppet.fleet.history.auditing import Auditor
    from localpuppet.fleet.history.day_log import DayLog
    from localpuppet.fleet.history.following import HistoryBoard, HistoryFollower
    from localpuppet.fleet.history.publishing import HistoryPublisher, PublishedDays
    from localpuppet.fleet.history.run_summary import RunSummary
    from localpuppet.fleet.wiring.inventory import Store
    from localpuppet.node.runs.attempt import Attempt
    from localpuppet.node.runs.records import RunDirectory
    from localpuppet.node.runs.run import Status


class HistoryWiring:
    """The parts of a node's history. A node without a bus has none.

    Args:
        fleet: The parts of a fleet node.
    """

    def __init__(self, fleet: FleetWiring) -> None:
        self._fleet = fleet
        self._state = fleet.node.settings.state

    @cached_property
    def runs(self) -> "DayLog[RunSummary]":
        """The run summaries of this node."""
        from localpuppet.fleet.history.day import RUNS
        from localpuppet.fleet.history.day_log import DayLog

        return DayLog(self._state, RUNS)

    @cached_property
    def audit(self) -> "DayLog[AuditRecord]":
        """The requests that this node decided."""
        from localpuppet.fleet.history.day import AUDIT
        from localpuppet.fleet.history.day_log import DayLog

        return DayLog(self._state, AUDIT)

    def after_run(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        """Record a finished run, and runs before it whose supervisors died.

        Args:
            note: Takes what a person should read; a failure becomes a note.
            run: The run.
            status: The run's result.
        """
        self._noting(note, lambda: self._record(run, status))

    def after_refusal(self, note: Callable[[str], None], attempt: "Attempt") -> None:
        """Record a refused apply; see `after_run`."""

        def record() -> None:
            from localpuppet.fleet.history.summarising import summarise_attempt

            self.runs.append(self._fleet.name, summarise_attempt(attempt))

        self._noting(note, record)

    def is_published(self) -> bool:
        """Return whether the bus has the history that this node has to publish."""
        from localpuppet.fleet.history.publishing import is_published

        return is_published(self._fleet.name, self._logs, self._published, self._fleet.node.clock)

    def auditor(self, log: "Log") -> "Auditor":
        """Return what records the requests that this node decides.

        Args:
            log: The log of the service.
        """
        from localpuppet.fleet.history.auditing import Auditor

        fleet = self._fleet
        return Auditor(partial(self.audit.append, fleet.name), fleet.node.clock, log)

    def publisher(self, store: "Store", log: "Log") -> "HistoryPublisher":
        """Return what publishes the history.

        Args:
            store: Returns the bus, connected.
            log: The log of the service.
        """
        from localpuppet.fleet.history.publishing import HistoryPublisher

        fleet = self._fleet
        return HistoryPublisher(
            fleet.name,
            self._logs,
            self._published,
            signer=fleet.signer,
            store=store,
            clock=fleet.node.clock,
            log=log,
        )

    def follower(self, board: "HistoryBoard", store: "Store", log: "Log") -> "HistoryFollower":
        """Return what passes the history of all nodes to a board; see `publisher`."""
        from localpuppet.fleet.history.following import HistoryFollower

        fleet = self._fleet
        return HistoryFollower(board, fleet.verifier, store=store, clock=fleet.node.clock, log=log)

    @property
    def _logs(self) -> "Sequence[DayLog[Any]]":
        return (self.runs, self.audit)

    @property
    def _published(self) -> "PublishedDays":
        from localpuppet.fleet.history.publishing import PublishedDays

        return PublishedDays(self._state)

    def _noting(self, note: Callable[[str], None], record: Callable[[], None]) -> None:
        """Call a function if the settings name a bus, which needs a fleet node's libraries."""
        try:
            if fleet_settings(self._fleet.node).bus.named:
                record()
        except LocalpuppetError as error:
            note(f"this run is not in the node's history: {error}")

    def _record(self, run: "RunDirectory", status: "Status") -> None:
        from localpuppet.fleet.history.summarising import interrupted_before, recent_runs

        records, name = open_records(self._fleet.node), self._fleet.name
        if not self.runs.is_begun:
            self.runs.begin(name, map(self._summary, recent_runs(records)))
        ended = [*interrupted_before(records, run), (run, status)]
        self.runs.append(name, *map(self._summary, ended))

    def _summary(self, ended: "tuple[RunDirectory, Status]") -> "RunSummary":
        from localpuppet.base.formats.names import ReleasePath
        from localpuppet.fleet.history.summarising import summarise_run
        from localpuppet.node.releases.tag_memory import TagMemory

        run, status = ended
        pin = None
        with suppress(LocalpuppetError):
            pin = TagMemory(self._state).pin(ReleasePath(status.release))
        return summarise_run(run, status, commit=None if pin is None else pin.commit)
