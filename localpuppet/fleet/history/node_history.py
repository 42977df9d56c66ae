"""The history that a node keeps for other nodes, if its settings name a bus."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import shortened
from localpuppet.base.machine.ports import Clock, Log
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.history.audit_record import AuditRecord
from localpuppet.fleet.history.auditing import Auditor
from localpuppet.fleet.history.day import AUDIT, RUNS
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
from localpuppet.fleet.trust.signing import MessageSigner
from localpuppet.node.releases.tag_memory import TagMemory
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import Attempt, Status

Store = Callable[[], Awaitable[KeyValue]]


class NodeHistory:
    """The history of a node whose settings name a bus; other nodes have none.

    Args:
        interval: Returns the seconds between the runs of the agent's timer; `None` while no agent
            is running.
    """

    def __init__(
        self,
        state: Path,
        *,
        name: Callable[[], NodeName],
        records: Records,
        interval: Callable[[], float | None],
        clock: Clock,
    ) -> None:
        self._name = name
        self._tags = TagMemory(state)
        self._runs, self._audit = DayLog(state, RUNS), DayLog(state, AUDIT)
        self._logs = (self._runs, self._audit)
        self._published = PublishedDays(state)
        self._records = records
        self._interval = interval
        self._clock = clock

    def after_run(self, run: RunDirectory, status: Status) -> None:
        """Record a finished run, and runs before it whose supervisors died."""
        name = self._name()
        if not self._runs.is_begun:
            self._runs.begin(name, map(self._summary, recent_runs(self._records)))
        ended = [*interrupted_before(self._records, run), (run, status)]
        self._runs.append(name, *map(self._summary, ended))

    def after_refusal(self, attempt: Attempt) -> None:
        """Record a refused apply."""
        before = last_end(self._records, self._every)
        end = RunEnd.of_attempt(attempt, before, self._every)
        summary = RunSummary.of(end, cause=shortened(attempt.cause, MAX_TEXT))
        self._runs.append(self._name(), summary)

    def after_command(self, user: str, action: str, subject: str) -> None:
        """Record that a user changed the holds on this node by a command."""
        at = self._clock.now().timestamp()
        self._audit.append(self._name(), AuditRecord.of_command(user, action, subject, at=at))

    def is_published(self) -> bool:
        """Return whether the bus has the history that this node has to publish."""
        return is_published(self._name(), self._logs, self._published, self._clock)

    def auditor(self, log: Log) -> Auditor:
        """Return what records the requests that this node decides."""
        return Auditor(partial(self._audit.append, self._name()), self._clock, log)

    def publisher(self, signer: MessageSigner, store: Store, log: Log) -> HistoryPublisher:
        """Return what publishes the history on a bus that `store` returns."""
        return HistoryPublisher(
            *(self._name(), self._logs, self._published),
            signer=signer,
            store=store,
            clock=self._clock,
            log=log,
        )

    @cached_property
    def _every(self) -> float | None:
        return self._interval()

    def _summary(self, ended: tuple[RunDirectory, Status]) -> RunSummary:
        run, status = ended
        pin = None
        with suppress(LocalpuppetError):
            pin = self._tags.pin(ReleasePath(status.release))
        end = RunEnd.of_run(status, self._records.streak(status), self._every)
        return summarise_run(run, status, end, commit=None if pin is None else pin.commit)
