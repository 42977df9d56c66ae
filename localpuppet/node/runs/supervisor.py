"""Supervises one run: takes the lock, classifies the node, runs Puppet, records the result.

At most one run is on a node. The record is opened before Puppet starts and closed after its end.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import EncError, LocalpuppetError, PuppetMissingError, StateError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.files import make_private, write_durably
from localpuppet.base.machine.ports import Child, Clock, ProcessEnd, Processes, ProcessId
from localpuppet.node.enc import input
from localpuppet.node.enc.document import EncData, NodeDocument
from localpuppet.node.enc.instance_facts import write_facts
from localpuppet.node.puppet import command_line, launching
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.puppet.report import make_ready, read_report
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_records import Ledger, Rollback
from localpuppet.node.runs import metrics_file
from localpuppet.node.runs.holds import Holds, NodeLock
from localpuppet.node.runs.observer import Observer
from localpuppet.node.runs.options import RunOptions, RunRequest
from localpuppet.node.runs.preparing import PreparedRun
from localpuppet.node.runs.run import Outcome, RunState, Status, refusal, refusal_cause
from localpuppet.node.runs.run_records import GoodRuns, Records, RunDirectory
from localpuppet.node.runs.verdict import (
    PuppetEnd,
    RunLog,
    RunVerdict,
    StopDecision,
    StopStep,
    decide,
    finish,
)

if TYPE_CHECKING:
    from localpuppet.base.machine.fork_server import ForkServerClient
    from localpuppet.node.sealed.serving import SealedServer

POLL = 0.05
# How many chunks are read between two checks of the clock, and at most after Puppet's end.
CHUNKS = 16
LAST_ROUNDS = 64


class OpenRecord:
    """The record of a run that has not ended. The run's duration counts from here on."""

    def __init__(self, directory: RunDirectory, status: Status, *, clock: Clock) -> None:
        self.directory = directory
        self.status = status
        self.begun = clock.monotonic()
        self._clock = clock

    def set_supervisor(self, supervisor: ProcessId) -> None:
        """Set the process that continues the run; the caller writes it."""
        self.status = replace(self.status, supervisor=asdict(supervisor))

    def set_puppet(self, launched: launching.LaunchedPuppet) -> None:
        """Set Puppet's process and start time; the caller writes them."""
        self.status = replace(
            self.status,
            state=RunState.RUNNING,
            puppet_started=True,
            puppet=asdict(launched.child.identity),
            warm=launched.warm,
            cold_reason=launched.cold_reason,
        )

    def close(self, verdict: RunVerdict, ending: PuppetEnd) -> Status:
        """Write the result of the run, and return the final status.

        Raises:
            StateError: The disk refused; the record then reads `interrupted`.
        """
        now, seconds = self._clock.now(), self._clock.monotonic() - self.begun
        status = finish(self.status, verdict, ending, at=now, seconds=seconds)
        self.directory.close(status)
        return status


def watch(
    child: Child,
    log: RunLog,
    stopping: StopDecision,
    *,
    clock: Clock,
    processes: Processes,
    observer: Observer,
) -> ProcessEnd | None:
    """Follow `child` until it has ended; return how, or `None` when KILL did not end it."""
    behind = False
    while True:
        ended = child.wait(0 if behind else POLL)
        behind = _take(child, log, observer)
        if ended is not None:
            for _ in range(LAST_ROUNDS if behind else 0):
                if not _take(child, log, observer):
                    break
            log.take(b"", observer.line, end=True)
            if ended.signal is not None or stopping.verdict is not None:
                child.end(kill=True)  # what it had started does not outlive a broken run
            return ended
        now = clock.monotonic()
        step = stopping.step(now, processes.cancellations())
        if step is StopStep.ABANDON:
            observer.note("Puppet does not end after SIGKILL; the node stays locked until it does")
            return None
        if step is not StopStep.NOTHING:
            reason = stopping.verdict.reason if stopping.verdict else ""
            observer.note(f"{reason}: sending {step.name} to Puppet")
            child.end(kill=step is StopStep.KILL)
        observer.tick(now - stopping.started)


def _take(child: Child, log: RunLog, observer: Observer) -> bool:
    """Read a limited amount of Puppet's output; return whether more may follow."""
    if log.full:
        child.skip()
        return False
    for _ in range(CHUNKS):
        data = child.read()
        if not data:
            return False
        log.take(data, observer.line)
    return True


def _log_of(
    run: RunDirectory, directories: Mapping[str, str], server: "SealedServer | None"
) -> RunLog:
    named = partial(command_line.with_names, directories=directories)
    return RunLog(run.log, named, bytes if server is None else server.mask.hide)


@dataclass(eq=False, kw_only=True)
class Supervisor:
    """Runs Puppet on this node.

    Attributes:
        call: Returns the parts of the `puppet apply` command that do not depend on the input.
        lean_start, route_file: How Ruby starts; Puppet's routes.
        grace: Seconds between TERM and KILL.
        min_free: Bytes that must be free on the state directory's file system.
        keep_runs, keep_days: How many records are kept, and for how many days.
        fits: Rejects a node document that does not fit the release, before Puppet starts.
        variables_of_calls: Environment variables by which Puppet code reaches localpuppet.
        sealed: Returns what opens the sealed values of a release; `None` if nothing is opened.
        after_run: Called after a record is closed; raises nothing.
    """

    state: Path
    records: Records
    good_runs: GoodRuns
    holds: Holds
    ledger: Ledger
    installation: Installation | PuppetMissingError
    call: Callable[[Installation, Release, str, RunOptions], command_line.ApplyCommand]
    reports: tuple[str, ...]
    lean_start: command_line.LeanStart
    route_file: Path
    env: Mapping[str, str]
    fork_server: "ForkServerClient | None"
    answer: Callable[[], EncData | None]
    grace: float
    min_free: int
    keep_runs: int
    keep_days: int
    metrics: Path
    rollback: Callable[[], Rollback | None]
    fits: Callable[[NodeDocument, Release, tuple[str, ...]], None]
    variables_of_calls: Mapping[str, str]
    sealed: "Callable[[Release], SealedServer | None]"
    after_run: Callable[[RunDirectory, Status], None]
    clock: Clock
    processes: Processes
    documents: Documents
    observer: Observer
    _agent_lock: launching.PuppetRunLock | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.installation, Installation):
            self._agent_lock = launching.PuppetRunLock(self.installation.run_lock, self.processes)

    def apply(
        self,
        prepared: PreparedRun,
        *,
        detach: Callable[[RunId], Callable[[], None]] | None = None,
    ) -> Status:
        """Run Puppet once, and return the final status.

        Args:
            detach: Called when the record is open. It forks: the child process continues, and calls
                the returned function when the record names it; the calling process reports the id
                and ends.

        Raises:
            BusyError: Another run of localpuppet or of Puppet's agent is on this node.
            OnHoldError: The node is on hold.
            StateError: The state directory cannot take a record; Puppet was not started.
        """
        try:
            return self._apply(prepared, detach=detach)
        finally:
            prepared.release_store()

    def _apply(
        self, prepared: PreparedRun, *, detach: Callable[[RunId], Callable[[], None]] | None
    ) -> Status:
        make_private(self.state)
        run = self.records.create(self.clock)
        lock = NodeLock(self.state / "lock", self.processes)
        lock.take(run.id, self.clock)
        try:
            self.holds.settle()
            self._check_holds(prepared.options)
            if self._agent_lock:
                self._agent_lock.take()
            self.records.check_space(self.min_free)
            puppet = self.installation if isinstance(self.installation, Installation) else None
            part = prepared.options.part(puppet.selection if puppet else {})
            status = Status(
                id=run.id,
                state=RunState.QUEUED,
                release=prepared.release.name,
                noop=prepared.options.noop or bool(puppet and puppet.noop),
                partial=bool(part),
                part=part,
                started_at=show_time(self.clock.now()),
                supervisor=asdict(self.processes.me()),
                work_tree=prepared.release.work_tree,
                repaired=prepared.release.repaired,
            )
            record = OpenRecord(run, status, clock=self.clock)
            try:
                installation = self._installation()
                request, call = self._classify(installation, run, prepared)
                if self.processes.cancellations():
                    raise EncError("cancelled by a signal")
            except (EncError, PuppetMissingError) as error:
                return self._never_started(record, prepared, error)
            run.open(request, status)
            prepared.release_store()
            if prepared.ends_rollback:
                self.ledger.end_rollback()
            if detach is not None:
                ready = detach(run.id)
                record.set_supervisor(self.processes.me())
                lock.held_by(record.status)
                run.write_status(record.status)
                ready()
            return self._supervise(record, request, call, lock, prepared)
        finally:
            if self._agent_lock:
                self._agent_lock.release()
            lock.release()

    def _check_holds(self, options: RunOptions) -> None:
        if not (options.noop and options.despite_hold):
            self.holds.check(through=options.through)
        elif held := self.holds.active():
            self.observer.note(f"on hold, and this run changes nothing: {held[0]}")

    def _installation(self) -> Installation:
        if isinstance(self.installation, PuppetMissingError):
            raise self.installation
        return self.installation

    def _classify(
        self, installation: Installation, run: RunDirectory, prepared: PreparedRun
    ) -> tuple[RunRequest, command_line.ApplyCommand]:
        release, options = prepared.release, prepared.options
        answer = None if prepared.document else self.answer()
        document = prepared.document or input.node_document(
            prepared.loaded, release.enc, answer=answer
        )
        try:
            self.fits(document, release, options.extra)
        except LocalpuppetError as error:
            raise error.at(prepared.loaded.name) from error
        call = self.call(installation, release, document.environment, options)
        call = replace(call, instance_facts=write_facts(prepared.instance_facts, self.state))
        for warning in installation.warnings(bus=call.storeconfigs):
            self.observer.note(f"warning: {warning}")
        launching.make_environment(call.compilation)
        write_durably(call.node_document, document.to_yaml().encode("utf-8"))
        command = call.recorded(
            public=run.public, report=run.report, route_file=self.route_file, reports=self.reports
        )
        now, whole = self.clock.now(), document.to_dict()
        request = prepared.request(run.id, now, command=command, document=whole, answer=answer)
        return request, call

    def _never_started(
        self, record: OpenRecord, prepared: PreparedRun, error: LocalpuppetError
    ) -> Status:
        """Record a run that ended before Puppet started, so that the failure is visible."""
        run = record.directory
        request = prepared.request(run.id, self.clock.now(), command=(), document={})
        run.open(request, record.status)
        log = RunLog(run.log)
        log.take(f"localpuppet: {error}\n".encode(), lambda _line: None, end=True)
        log.close()
        cancelled = self.processes.cancellations() > 0
        verdict = RunVerdict(
            outcome=Outcome.CANCELLED if cancelled else Outcome.FAILED,
            reason=f"{error}; Puppet was not started",
        )
        cause = refusal_cause(refusal(error), error.what)
        ending = PuppetEnd(code=None, signal=None, stopped=verdict, failure_cause=cause)
        return self._close(record, verdict, ending)

    def _supervise(
        self,
        record: OpenRecord,
        request: RunRequest,
        call: command_line.ApplyCommand,
        lock: NodeLock,
        prepared: PreparedRun,
    ) -> Status:
        run, started, options = record.directory, self.clock.now(), prepared.options
        directories = prepared.release.directories
        server = self.sealed(prepared.release)
        log = _log_of(run, directories, server)
        self.observer.command(call.shown())
        child: Child | None = None
        ended: ProcessEnd | None = None
        try:
            launched = self._start(run, request, call, lock, server)
            child = launched.child
            record.set_puppet(launched)
            lock.held_by(record.status)
            if self._agent_lock:
                self._agent_lock.hand_to(child.identity.pid)
            run.write_status(record.status)
            make_ready()
            # A rollback is not a step forward: what was newest stays so.
            if record.status.whole and not options.document:
                self.ledger.note(ReleasePath(record.status.release))
            stopping = StopDecision(started=record.begun, timeout=options.timeout, grace=self.grace)
            ended = watch(
                child,
                log,
                stopping,
                clock=self.clock,
                processes=self.processes,
                observer=self.observer,
            )
            if ended is None:
                ended = self._leave_node(lock)
            self._end_sealed(server, run)
            report, problem = read_report(run.report, started=started, directories=directories)
            ending = PuppetEnd(
                code=ended.code,
                signal=ended.signal,
                stopped=stopping.verdict,
                report=report,
                report_problem=problem,
                first_error=log.first_error,
                directories=directories,
                classes=tuple(request.node_document["classes"]),
            )
            verdict = decide(ending)
            if log.cut:
                reason = "; ".join(filter(None, [verdict.reason, log.cut]))
                verdict = replace(verdict, reason=reason)
            return self._close(record, verdict, ending)
        except StateError as error:
            if child is not None and ended is None:
                ended = self._kill(child, lock)
            # Also when this very close failed: the disk may have room by now, or refuse again.
            verdict = RunVerdict(
                outcome=Outcome.FAILED, reason=f"cannot supervise the run: {error}"
            )
            self._close(record, verdict, PuppetEnd(code=None, signal=None, stopped=verdict))
            raise
        finally:
            log.close()
            self._end_sealed(server, run)
            if child is not None:
                if ended is None:
                    self._kill(child, lock)
                child.release()

    def _kill(self, child: Child, lock: NodeLock) -> ProcessEnd:
        """Kill a Puppet without a supervisor, which must not run beside another run."""
        child.end(kill=True)
        return child.wait(self.grace) or self._leave_node(lock)

    def _leave_node(self, lock: NodeLock) -> ProcessEnd:
        """Leave the locks to a Puppet that outlives KILL: it occupies the node until its end."""
        lock.leave()
        if self._agent_lock:
            self._agent_lock.leave()
        return ProcessEnd(code=None, signal=None)

    def _end_sealed(self, server: "SealedServer | None", run: RunDirectory) -> None:
        for path in () if server is None else server.end(run.path):
            self.observer.note(f"warning: masked sealed values in {path}, which Puppet had written")

    def _start(
        self,
        run: RunDirectory,
        request: RunRequest,
        call: command_line.ApplyCommand,
        lock: NodeLock,
        server: "SealedServer | None",
    ) -> launching.LaunchedPuppet:
        words = {command_line.SEALED: command_line.PLACEHOLDERS} if request.work_tree else {}
        given = launching.PuppetLaunch(
            installation=self._installation(),
            argv=request.command,
            base=self.env,
            more={**self.variables_of_calls, "LOCALPUPPET_RUN": run.id, **call.variables, **words},
            lock=lock.fd,
            group=f"localpuppet-{run.id}",
            environment=call.compilation.key,
            sealed=None if server is None else server.descriptor,
        )
        launched = launching.launch(
            given,
            processes=self.processes,
            lean=self.lean_start,
            fork_server=self.fork_server,
        )
        if server is not None:
            server.start()
        return launched

    def _house_keeping(self, status: Status) -> None:
        """Clean up after the run, when a failure cannot harm it any longer."""
        keep = self.good_runs.keep
        self.documents.remember()
        try:
            keep(status)
            self.records.settle()
            self.records.prune(
                runs=self.keep_runs, days=self.keep_days, keep=status.id, before=keep
            )
            self.records.remove_temporary_files()
        except StateError as error:
            self.observer.note(f"cannot remove old records: {error}")

    def _close(self, record: OpenRecord, verdict: RunVerdict, ending: PuppetEnd) -> Status:
        status = record.close(verdict, ending)
        self.after_run(record.directory, status)
        record.directory.clear()
        self._house_keeping(status)
        self._write_metrics(status)
        return status

    def _write_metrics(self, status: Status) -> None:
        """Update the Prometheus textfile; if the disk refuses, note it and continue."""
        server = self.fork_server
        try:
            metrics_file.update(
                self.metrics,
                status,
                holds=len(self.holds.active()),
                rollback=self.rollback(),
                fork_server=None if server is None else server.memory(),
                now=self.clock.now(),
            )
        except StateError as error:
            self.observer.note(f"cannot write the metrics: {error}")
