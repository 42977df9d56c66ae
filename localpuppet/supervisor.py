"""One run, end to end: lock others out, classify, apply, record what happened.

Owns: the order of things. Invariants: at most one run on a node; the record is opened before
Puppet starts and closed after it; what Puppet's exit code and its own report do not both call a
success is none. Refuses to know: the operating system, the terminal.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from localpuppet import enc, metrics
from localpuppet.agent_lock import AgentLock
from localpuppet.documents import Documents
from localpuppet.errors import EncError, LocalpuppetError, StateError
from localpuppet.files import make_private, state_problem
from localpuppet.holds import Holds
from localpuppet.model.names import NodeName, RunId
from localpuppet.model.node import NodeDocument
from localpuppet.model.run import (
    Ending,
    Outcome,
    Request,
    State,
    Status,
    Verdict,
    decide,
    show_time,
)
from localpuppet.model.stopping import Step, Stopping
from localpuppet.node_lock import NodeLock
from localpuppet.ports import Child, Clock, Ended, Observer, Processes
from localpuppet.puppet import Call, Installation, environment, read_report
from localpuppet.record import Log, Records, RunDirectory
from localpuppet.release import Release

POLL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This node, as its settings describe it.

    Attributes:
        state: The state directory.
        installation: Puppet.
        call: Everything of `puppet apply` that does not depend on the input.
        reports: Report processors that Puppet is to run.
        lean_start: What Ruby loads first.
        route_file: Puppet's routes.
        env: The environment that Puppet gets.
        enc_command: The site's own ENC, if there is one.
        grace: Seconds between TERM and KILL.
        min_free: Bytes that must be free on the state directory's file system.
        keep_runs: How many records are kept.
        keep_days: For how many days.
        metrics: Where the Prometheus textfile goes.
        fits: Refuses a node document that does not fit the release; with options for Puppet.
    """

    state: Path
    installation: Installation
    call: Callable[[Release, str, "Wish"], Call]
    reports: tuple[str, ...]
    lean_start: Path
    route_file: Path
    env: Mapping[str, str]
    enc_command: "enc.EncCommand | None"
    grace: float
    min_free: int
    keep_runs: int
    keep_days: int
    metrics: Path
    fits: Callable[[NodeDocument, Release, tuple[str, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the caller wants of this run.

    Attributes:
        noop: Change nothing.
        tags: Only resources with these tags.
        extra: More options for Puppet.
        timeout: Seconds.
        user: Who asks.
        cause: What led to it.
    """

    noop: bool
    tags: str | None
    extra: tuple[str, ...]
    timeout: float
    user: str
    cause: str


class Supervisor:
    """Runs Puppet on this node.

    Args:
        node: The node.
        clock: Time.
        processes: Starts and ends Puppet.
        documents: Reads the answer of the site's ENC.
        observer: Is told what happens.
    """

    def __init__(
        self,
        node: Node,
        *,
        clock: Clock,
        processes: Processes,
        documents: Documents,
        observer: Observer,
    ) -> None:
        self._node = node
        self._clock = clock
        self._processes = processes
        self._documents = documents
        self._observer = observer
        self.records = Records(node.state / "runs", processes)
        self.holds = Holds(node.state / "holds", node.installation.disable_file, clock)
        self._agent_lock = AgentLock(node.installation.run_lock, processes)

    def apply(
        self,
        source: enc.Source,
        release: Release,
        wish: Wish,
        *,
        detach: Callable[[RunId], Callable[[], None]] | None = None,
    ) -> Status:
        """Run `release` with `source` and return how that ended.

        Args:
            source: The checked input.
            release: The release that it names.
            wish: How.
            detach: Called when the record is open. It returns in a process of its own, which goes
                on, and what it returns is called when the record names that process; the calling
                process reports the id and ends.

        Raises:
            BusyError: Another run, or a Puppet agent's, has this node.
            OnHoldError: The node is on hold.
            StateError: The state directory cannot take a record; Puppet was not started.
        """
        make_private(self._node.state)
        run = self.records.create(self._clock)
        lock = NodeLock(self._node.state / "lock", self._processes)
        lock.take(run.id, self._clock)
        try:
            self.holds.settle()
            self.holds.check()
            self._agent_lock.take()
            self._check_space()
            started = self._clock.now()
            status = Status(
                id=run.id,
                state=State.QUEUED,
                app=release.app,
                noop=wish.noop,
                started_at=show_time(started),
                supervisor=asdict(self._processes.me()),
            )
            begun = self._clock.monotonic()
            try:
                request, call = self._classify(run, source, release, wish)
            except EncError as error:
                return self._never_started(run, status, source, release, wish, error)
            run.open(request, status)
            if detach is not None:
                ready = detach(run.id)
                status = replace(status, supervisor=asdict(self._processes.me()))
                lock.held_by(status)
                run.write_status(status)
                ready()
            return self._supervise(run, request, call, status, lock, begun, wish)
        finally:
            self._agent_lock.release()
            lock.release()

    def _check_space(self) -> None:
        try:
            disk = os.statvfs(self._node.state)
        except OSError as error:
            raise state_problem(error, self._node.state) from error
        free = disk.f_bavail * disk.f_frsize
        if free < self._node.min_free or (disk.f_files and disk.f_favail < 64):
            raise StateError(
                f"only {free // 1048576} MiB and {disk.f_favail} inodes are free;"
                f" a run needs {self._node.min_free // 1048576} MiB and 64",
                where=str(self._node.state),
                hint="make room; Puppet was not started",
            )

    def _classify(
        self, run: RunDirectory, source: enc.Source, release: Release, wish: Wish
    ) -> tuple[Request, Call]:
        node = self._node
        answer = None
        if node.enc_command is not None:
            name = NodeName.parse(node.installation.settings["certname"])
            answer = node.enc_command.ask(
                name, processes=self._processes, documents=self._documents
            )
        document = enc.node_document(source, release, answer=answer)
        try:
            node.fits(document, release, wish.extra)
        except LocalpuppetError as error:
            raise error.at(source.name) from error
        call = node.call(release, document.environment, wish)
        make_private(call.environments / document.environment)
        enc.write_document(document, call.node_document)
        command = call.recorded(
            public=run.public, report=run.report, route_file=node.route_file, reports=node.reports
        )
        request = Request(
            id=run.id,
            requested_at=show_time(self._clock.now()),
            user=wish.user,
            cause=wish.cause,
            app=release.app,
            modulepath=tuple(map(str, release.modulepath)),
            environment=document.environment,
            input=source.name,
            input_sha256=source.sha256,
            layers=source.input.layers,
            noop=wish.noop,
            timeout=wish.timeout,
            command=tuple(command),
            node_document=document.to_dict(),
        )
        return request, call

    def _never_started(
        self,
        run: RunDirectory,
        status: Status,
        source: enc.Source,
        release: Release,
        wish: Wish,
        error: EncError,
    ) -> Status:
        """Record a run that ended before Puppet started: silence would look like health."""
        request = Request(
            id=run.id,
            requested_at=status.started_at,
            user=wish.user,
            cause=wish.cause,
            app=release.app,
            modulepath=tuple(map(str, release.modulepath)),
            environment="",
            input=source.name,
            input_sha256=source.sha256,
            layers=source.input.layers,
            noop=wish.noop,
            timeout=wish.timeout,
            command=(),
            node_document={},
        )
        run.open(request, status)
        self._observer.note(f"{error}; Puppet was not started")
        log = Log(run.log)
        log.take(f"localpuppet: {error}\n".encode(), lambda _line: None, end=True)
        log.close()
        verdict = Verdict(outcome=Outcome.FAILED, reason=f"{error}; Puppet was not started")
        ending = Ending(code=None, signal=None, stopped=verdict, report=None, report_problem="")
        return self._close(run, status, verdict, ending, 0.0)

    def _supervise(
        self,
        run: RunDirectory,
        request: Request,
        call: Call,
        status: Status,
        lock: NodeLock,
        begun: float,
        wish: Wish,
    ) -> Status:
        started = self._clock.now()
        log = Log(run.log)
        self._observer.command(call.shown())
        child: Child | None = None
        ended: Ended | None = None
        try:
            child = self._start(run, request, call, lock)
            status = replace(
                status, state=State.RUNNING, puppet_started=True, puppet=asdict(child.identity)
            )
            lock.held_by(status)
            self._agent_lock.hand_to(child.identity.pid)
            run.write_status(status)
            self._house_keeping(run)
            stopping = Stopping(started=begun, timeout=wish.timeout, grace=self._node.grace)
            ended = self._watch(child, log, stopping, begun)
            report, problem = read_report(run.report, started=started)
            ending = Ending(
                code=ended.code,
                signal=ended.signal,
                stopped=stopping.verdict,
                report=report,
                report_problem=problem,
            )
            verdict = decide(ending)
            if not log.complete:
                reason = "; ".join(filter(None, [verdict.reason, "the log is cut: disk full"]))
                verdict = replace(verdict, reason=reason)
            return self._close(run, status, verdict, ending, self._clock.monotonic() - begun)
        except StateError as error:
            # Also when this very close failed: the disk may have room by now, or refuse again.
            verdict = Verdict(outcome=Outcome.FAILED, reason=f"could not be supervised: {error}")
            ending = Ending(code=None, signal=None, stopped=verdict, report=None, report_problem="")
            self._close(run, status, verdict, ending, self._clock.monotonic() - begun)
            raise
        finally:
            log.close()
            if child is not None:
                if ended is None:
                    # Nobody would watch it: a Puppet alone must not outlive the lock.
                    child.end(kill=True)
                    child.wait(self._node.grace)
                child.release()

    def _start(self, run: RunDirectory, request: Request, call: Call, lock: NodeLock) -> Child:
        node = self._node
        env = environment(
            node.env,
            lean=node.installation.lean,
            lean_start=node.lean_start,
            more={
                "LOCALPUPPET_RUN_ID": run.id,
                "LOCALPUPPET_NODE_DOCUMENT": str(call.node_document),
            },
        )
        return self._processes.start(
            request.command, env=env, cwd=Path("/"), keep=lock.fd, group=f"localpuppet-{run.id}"
        )

    def _house_keeping(self, run: RunDirectory) -> None:
        """Tidy up while Puppet starts: it takes a second in which nobody needs us."""
        node = self._node
        self._documents.remember()
        try:
            self.records.settle()
            self.records.prune(
                runs=node.keep_runs, days=node.keep_days, now=self._clock.now(), keep=run.id
            )
        except StateError as error:
            self._observer.note(f"old records could not be tidied up: {error}")

    def _watch(self, child: Child, log: Log, stopping: Stopping, begun: float) -> Ended:
        """Follow Puppet to its end."""
        while True:
            ended = child.wait(POLL)
            now = self._clock.monotonic()
            while data := child.read():
                log.take(data, self._observer.line)
            if ended is not None:
                log.take(b"", self._observer.line, end=True)
                if ended.signal is not None or stopping.verdict is not None:
                    child.end(kill=True)  # what it had started does not outlive a broken run
                return ended
            step = stopping.step(now, self._processes.cancellations())
            if step is Step.ABANDON:
                self._observer.note("Puppet does not die of KILL; it is left behind")
                return Ended(code=None, signal=None)
            if step is not Step.NOTHING:
                reason = stopping.verdict.reason if stopping.verdict else ""
                self._observer.note(f"{reason}: sending {step.name} to Puppet")
                child.end(kill=step is Step.KILL)
            self._observer.tick(now - begun)

    def _close(
        self, run: RunDirectory, status: Status, verdict: Verdict, ending: Ending, seconds: float
    ) -> Status:
        status = status.finished(verdict, ending, at=self._clock.now(), seconds=seconds)
        run.close(status)
        self.write_metrics(status)
        return status

    def write_metrics(self, status: Status | None = None) -> None:
        """Bring the Prometheus textfile up to date, with the run that just ended if one did.

        A disk that refuses is noted, no more: the record is the truth.
        """
        try:
            metrics.update(
                self._node.metrics, status, holds=len(self.holds.active()), now=self._clock.now()
            )
        except StateError as error:
            self._observer.note(f"metrics could not be written: {error}")
