"""From settings to a node's history: its logs, its publisher, and a follower of all nodes.

Import it only if the settings name a bus: it needs the libraries of a fleet node.
"""

from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import shortened
from localpuppet.base.machine.ports import Log
from localpuppet.fleet.history.audit_record import AuditRecord
from localpuppet.fleet.history.auditing import Auditor
from localpuppet.fleet.history.day import AUDIT, RUNS
from localpuppet.fleet.history.following import HistoryBoard, HistoryFollower
from localpuppet.fleet.history.publishing import (
    DayLog,
    HistoryPublisher,
    PublishedDays,
    is_published,
)
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.fleet.history.summarising import (
    interrupted_before,
    last_end,
    recent_runs,
    summarise_run,
)
from localpuppet.fleet.inventory.run_end import MAX_TEXT, RunEnd
from localpuppet.fleet.wiring.fleet import FleetWiring, fleet_settings
from localpuppet.fleet.wiring.inventory import InventoryWiring
from localpuppet.node.releases.tag_memory import TagMemory
from localpuppet.node.runs.records import RunDirectory
from localpuppet.node.runs.run import Attempt, Status

if TYPE_CHECKING:
    from localpuppet.fleet.wiring.inventory import Store


class HistoryWiring:
    """The parts of a node's history. A node without a bus has none.

    Args:
        fleet: The parts of a fleet node.
    """

    def __init__(self, fleet: FleetWiring) -> None:
        self._fleet = fleet
        self._clock = fleet.node.clock
        state = fleet.node.settings.state
        self._runs, self._audit = DayLog(state, RUNS), DayLog(state, AUDIT)
        self._logs = (self._runs, self._audit)
        self._published = PublishedDays(state)
        self._records = fleet.node.records

    @cached_property
    def _interval(self) -> float | None:
        """The seconds between the runs of the agent's timer; `None` while no agent is running."""
        there = InventoryWiring(self._fleet.node, fleet=self._fleet).agent_is_there()
        return fleet_settings(self._fleet.node).agent.run_interval if there else None

    def after_run(self, run: RunDirectory, status: Status) -> None:
        """Record a finished run, and runs before it whose supervisors died."""
        records, name = self._records, self._fleet.name
        if not self._runs.is_begun:
            self._runs.begin(name, map(self._summary, recent_runs(records)))
        ended = [*interrupted_before(records, run), (run, status)]
        self._runs.append(name, *map(self._summary, ended))

    def after_refusal(self, attempt: Attempt) -> None:
        """Record a refused apply."""
        before = last_end(self._records, self._interval)
        end = RunEnd.of_attempt(attempt, before, self._interval)
        summary = RunSummary.of(end, cause=shortened(attempt.cause, MAX_TEXT))
        self._runs.append(self._fleet.name, summary)

    def after_command(self, user: str, action: str, subject: str) -> None:
        """Record that a user changed the holds on this node by a command."""
        at = self._clock.now().timestamp()
        self._audit.append(self._fleet.name, AuditRecord.of_command(user, action, subject, at=at))

    def is_published(self) -> bool:
        """Return whether the bus has the history that this node has to publish."""
        return is_published(self._fleet.name, self._logs, self._published, self._clock)

    def auditor(self, log: Log) -> Auditor:
        """Return what records the requests that this node decides.

        Args:
            log: The log of the service.
        """
        return Auditor(partial(self._audit.append, self._fleet.name), self._clock, log)

    def publisher(self, store: "Store", log: Log) -> HistoryPublisher:
        """Return what publishes the history.

        Args:
            store: Returns the bus, connected.
            log: The log of the service.
        """
        fleet = self._fleet
        return HistoryPublisher(
            *(fleet.name, self._logs, self._published),
            signer=fleet.signer,
            store=store,
            clock=self._clock,
            log=log,
        )

    def follower(self, board: HistoryBoard, store: "Store", log: Log) -> HistoryFollower:
        """Return what passes the history of all nodes to a board; see `publisher`."""
        verifier = self._fleet.verifier
        return HistoryFollower(board, verifier, store=store, clock=self._clock, log=log)

    def _summary(self, ended: tuple[RunDirectory, Status]) -> RunSummary:
        run, status = ended
        pin = None
        with suppress(LocalpuppetError):
            pin = TagMemory(self._fleet.node.settings.state).pin(ReleasePath(status.release))
        end = RunEnd.of_run(status, self._records.streak(status), self._interval)
        return summarise_run(run, status, end, commit=None if pin is None else pin.commit)
