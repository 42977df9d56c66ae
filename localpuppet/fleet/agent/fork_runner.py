"""The `Runner`s of an agent: children of a fork server, or a command of the site.

- A child, not a thread: the supervisor handles signals, and survives when the agent is killed.
- A fork, not a new process: starting Python and importing would add 100 ms between a trigger and
  Puppet.
- The child uses none of the agent's connections, signal handlers or event loops, and ends with
  `os._exit`.
- If a child dies without a report, the run counts as ended only if the child had reported its
  start. The record has the rest.
- Two commands never run at once, even if the agent that started the first was killed.
- If a process cannot start for lack of memory or the like, the agent tries the run again.
- The server starts while no run is in progress, so that its start does not slow a run down.
- It ends itself with its own exit code when it is outdated, for example after a run with changes
  (see `share/fork_server.rb`). After any other end, the next start waits for a pause that doubles.
- Without a server, runs start Puppet cold.
"""

import asyncio
import contextlib
import errno
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from localpuppet.base.errors import (
    BusyError,
    LocalpuppetError,
    OnHoldError,
    StateError,
    UnavailableError,
    thread_shortage,
)
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.child import signal_group
from localpuppet.base.machine.files import make_private
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.fork_server import MAX_PATH
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.machine.ports import Log
from localpuppet.base.machine.processes import KeptProcess, start_kept
from localpuppet.base.machine.waiting import wait_first
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion, RunOrder
from localpuppet.fleet.agent.confirmation import RetreatOrder, is_confirmed
from localpuppet.fleet.agent.rollout_steps import Deployment
from localpuppet.fleet.fleet_settings import fleet_settings_of
from localpuppet.fleet.requests.request import Compile, DeployAction
from localpuppet.node.app import NodeApp, program_environment
from localpuppet.node.puppet.launching import LIMITS, ServerLimits, server_command
from localpuppet.node.runs.observer import NoteObserver
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.run import Status, public_reason

if TYPE_CHECKING:
    from localpuppet.node.runs.preparing import AssignmentService

_MAX_WORD = 64 * 1024
_REPORT = 3
_BEGUN = b"\n"  # sent before the report; JSON ignores it
# Errors that pass: a shortage of resources, or a program that is being replaced.
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
Begun = Callable[[], None]
Work = TypeVar("Work")  # the work of a child: a run's order, a deployment


class ForkRunner(Generic[Work]):
    """Executes runs, or other long work, in children: `work` calls `Begun` when its run begins."""

    def __init__(self, work: Callable[[Work, Begun], RunCompletion]) -> None:
        self._work = work
        self._pid = 0
        gc.collect()
        gc.freeze()  # the children share the memory of existing objects

    async def run(self, order: Work) -> RunCompletion:
        """Execute a run; see `fleet.agent.agent.Runner`."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            reader, writer = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            return not_started(error, "a supervisor")
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reader)
            os.close(writer)
            return not_started(error, "a supervisor")
        if pid == 0:
            _child(self._work, order, writer)
        os.close(writer)
        self._pid = pid
        try:
            await ended(pid)
            word = os.read(reader, _MAX_WORD)
        finally:
            os.close(reader)
            self._pid = 0
        _, status = os.waitpid(pid, 0)
        return _understand(word, os.waitstatus_to_exitcode(status))

    def end(self) -> None:
        """Send TERM to the child of the run in progress."""
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)


async def ended(pid: int) -> None:
    """Wait until a child can be reaped."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    fd = os.pidfd_open(pid)
    loop.add_reader(fd, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _child(work: Callable[[Work, Begun], RunCompletion], order: Work, writer: int) -> None:
    """Execute the run in the child; never return."""
    code = 70
    try:
        # The child must not finalise the agent's garbage: that would close file descriptors whose
        # numbers the child may use.
        gc.freeze()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if writer != _REPORT:
            os.dup2(writer, _REPORT, inheritable=False)
        os.closerange(_REPORT + 1, os.sysconf("SC_OPEN_MAX"))
        end = work(order, lambda: _tell(_BEGUN))
        _tell(json.dumps(asdict(end)).encode()[: _MAX_WORD - 1])
        code = 0
    except BaseException as error:  # noqa: BLE001 - the child must not become a second agent
        what = thread_shortage(error) or f"bug in a run: {type(error).__name__}: {error}"
        os.write(2, f"localpuppet: {what}\n".encode())
    finally:
        os._exit(code)


def not_started(error: OSError, what: str) -> RunCompletion:
    """Return the result of a run whose process could not start."""
    result = RequestedRunResult.BUSY if error.errno in _SCARCE else RequestedRunResult.IMPOSSIBLE
    return RunCompletion(result=result, reason=f"{what}: {error.strerror or error}")


def _tell(word: bytes) -> None:
    """Send bytes to the agent; if the agent was killed, continue without it."""
    with contextlib.suppress(BrokenPipeError):
        os.write(_REPORT, word)


def _understand(message: bytes, code: int) -> RunCompletion:
    try:
        raw = loads(message)
        return RunCompletion(**{**raw, "result": RequestedRunResult(raw["result"])})
    except (ValueError, KeyError, TypeError):
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
    if message.startswith(_BEGUN):
        return RunCompletion(
            result=RequestedRunResult.OVER,
            outcome="interrupted",
            reason=f"its supervisor died ({how})",
        )
    # Nothing ran. After a kill the agent tries the run again, because the run did not cause the
    # kill.
    result = RequestedRunResult.BUSY if code < 0 else RequestedRunResult.IMPOSSIBLE
    return RunCompletion(result=result, reason=f"its supervisor died before it began ({how})")


@dataclass(slots=True, eq=False)
class CommandRunner:
    """Runs a command of the site (`run_cmd`), such as `puppet agent --test`."""

    command: tuple[str, ...]
    env: dict[str, str]
    _: KW_ONLY
    lock: Path
    timeout: float
    grace: float
    _pid: int = field(default=0, init=False)

    async def run(self, order: RunOrder) -> RunCompletion:
        """Execute a run; see `fleet.agent.agent.Runner`. The exit code is the only result."""
        make_private(self.lock.parent)
        lock = Flock.take(self.lock)
        if lock is None:
            return RunCompletion(
                result=RequestedRunResult.BUSY,
                reason="the command of an earlier agent is still running",
            )
        try:
            # Not asyncio's subprocess: it kills the command if the agent ends with an error.
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                env={**self.env, "LOCALPUPPET_CAUSE": order.text[:1000]},
                start_new_session=True,
                pass_fds=(lock.fd,),
            )
        except OSError as error:
            lock.release()
            return not_started(error, self.command[0])
        self._pid = process.pid
        try:
            in_time = await self._over(process.pid)
        finally:
            self._pid = 0
        code = process.wait()
        lock.release()  # not on cancellation: the command keeps running and has the lock
        if not in_time:
            reason = f"did not end within {self.timeout:g} s"
            return RunCompletion(result=RequestedRunResult.OVER, outcome="timed_out", reason=reason)
        return RunCompletion(
            result=RequestedRunResult.OVER,
            outcome="ended" if code == 0 else "failed",
            reason=f"exit code {code}",
        )

    async def _over(self, pid: int) -> bool:
        """Wait for a command and end it after its time; return whether it ended in time."""
        over = asyncio.create_task(ended(pid))
        try:
            for patience, number in (
                (self.timeout, signal.SIGTERM),
                (self.grace, signal.SIGKILL),
            ):
                done, _ = await asyncio.wait([over], timeout=patience)
                if done:
                    return number is signal.SIGTERM
                signal_group(pid, number)
            await over
            return False
        finally:
            over.cancel()

    def end(self) -> None:
        """Send TERM to the running command."""
        if self._pid:
            signal_group(self._pid, signal.SIGTERM)


# The exit code of a server that is to be replaced.
RECYCLED = 10
# Seconds until the next start after a failure: the first pause, and the longest.
FIRST = 1.0
LONGEST = 300.0
# Seconds that the server may take to end when the agent ends.
PATIENCE = 10.0


class RunActivity(Protocol):
    """Returns whether a run is in progress: `fleet.agent.agent.Agent`."""

    @property
    def running(self) -> object:
        """Return the run in progress; a false value without one."""

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on each change; the subscriber clears it."""


@dataclass(frozen=True, slots=True)
class ForkServerKeeper:
    """Keeps a fork server running; `first` is the first pause in seconds after a failed start."""

    runs: RunActivity
    _: KW_ONLY
    start: Callable[[], KeptProcess]
    log: Log
    first: float = FIRST

    async def keep(self, leave: asyncio.Event) -> None:
        """Keep a server running until `leave` is set, and end it then."""
        changed = self.runs.subscribe()
        pause = self.first
        while not leave.is_set():
            while self.runs.running and not leave.is_set():
                changed.clear()
                await wait_first(leave, changed)
            if leave.is_set():
                return
            problem = await self._serve(leave)
            if problem is None:
                pause = self.first
            elif not leave.is_set():
                self.log.warning(f"{problem}; runs start cold until it is running again")
                await wait_first(leave, seconds=pause)
                pause = min(2 * pause, LONGEST)

    async def _serve(self, leave: asyncio.Event) -> str | None:
        """Run a server until it ends or `leave` is set; return the error, if any."""
        try:
            server = self.start()
        except LocalpuppetError as error:
            return f"the fork server: {error}"
        over = asyncio.create_task(ended(server.identity.pid))
        try:
            await wait_first(leave, over)
            if not over.done():
                server.end()
                await asyncio.wait([over], timeout=PATIENCE)
            code = server.code() if over.done() else RECYCLED
        finally:
            over.cancel()
        if code == RECYCLED or leave.is_set():
            return None
        return f"the fork server ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})"


# Bytes of differences between two catalogs; a child reports at most 64 KiB.
MAX_CHANGES = 40 * 1024


class _Begins(NoteObserver):
    """Watches a run for its beginning."""

    def __init__(self, begun: Callable[[], None]) -> None:
        super().__init__()
        self._begun = begun

    def command(self, text: str) -> None:
        """Report that the run begins: Puppet starts with this command line."""
        self._begun()


def run_order(node: NodeApp, order: RunOrder, begun: Callable[[], None]) -> RunCompletion:
    """Apply a release as `localpuppet apply` does, and return the result.

    Args:
        node: Its settings are read again for each run, as for the other kinds of work.
        begun: Called when the run is recorded and Puppet is about to start.
    """
    node = node.again()
    try:
        options = RunOptions(
            noop=order.noop,
            tags=",".join(order.puppet_tags) or None,
            extra=(),
            timeout=node.settings.timeouts.run,
            user="agent",
            cause=order.text[:200],
            causes=order.causes,
            through=order.through,
        )
        with node.attempts.record_refusal(options) as set_release:
            try:
                status = _run(node, options, begun, set_release)
            except (BusyError, OnHoldError) as error:
                # Not an attempt: the agent keeps the causes, and their run follows.
                return RunCompletion(result=RequestedRunResult.BUSY, reason=str(error))
    except LocalpuppetError as error:
        return RunCompletion(result=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return _end(status)


def deploy(node: NodeApp, order: Deployment, _begun: Callable[[], None]) -> RunCompletion:
    """Stage, apply or leave a release, and return the result: `OVER` on success."""
    assignment, deed = order.assignment, order.args.action

    def take() -> None:
        assigning = _assigning(node)
        if deed is DeployAction.STAGE:
            assigning.stage(assignment)
        elif deed is DeployAction.APPLY:
            assigning.take(assignment)
        else:
            assigning.go_back(assignment)

    return _done(take)


def retreat(node: NodeApp, order: RetreatOrder, _begun: Callable[[], None]) -> RunCompletion:
    """Go back from a release that was not confirmed, and return the result; see `deploy`."""
    left, by = order.left, order.because
    return _done(lambda: _assigning(node).go_back(left, by=by))


def _assigning(node: NodeApp) -> "AssignmentService":
    fresh = node.again()
    return fresh.assigning(
        confirm=fresh.section(fleet_settings_of).agent.confirm or 0.0,
        confirmed=partial(is_confirmed, fresh.settings.state),
    )


def _done(work: Callable[[], None]) -> RunCompletion:
    """Call a function, and return whether it succeeded as the result of a request."""
    try:
        work()
    except BusyError as error:
        return RunCompletion(result=RequestedRunResult.BUSY, reason=str(error))
    except LocalpuppetError as error:
        return RunCompletion(result=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return RunCompletion(result=RequestedRunResult.OVER)


def compile_candidate(node: NodeApp, order: Compile, _begun: Callable[[], None]) -> RunCompletion:
    """Compile two catalogs, and return their differences; see `deploy`."""
    try:
        changes = node.again().candidate().changes(order.release)
    except LocalpuppetError as error:
        return RunCompletion(result=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return RunCompletion(
        result=RequestedRunResult.OVER, details=changes.bounded(MAX_CHANGES).to_dict()
    )


def _run(
    node: NodeApp,
    options: RunOptions,
    begun: Callable[[], None],
    set_release: Callable[[ReleasePath], None],
) -> Status:
    prepared = node.preparation().prepare(options, set_release=set_release)
    server = node.fork_server if node.section(fleet_settings_of).agent.warm else None
    supervisor = node.supervisor(_Begins(begun), fork_server=server)
    node.processes.watch_signals()
    return supervisor.apply(prepared)


def _end(status: Status) -> RunCompletion:
    return RunCompletion(
        result=RequestedRunResult.OVER,
        run=status.id,
        outcome=str(status.outcome),
        reason="" if status.succeeded else public_reason(status),
    )


def warm(node: NodeApp) -> None:
    """Import the modules that a run needs, so that forked children share them."""
    from localpuppet.base.machine import processes
    from localpuppet.node.puppet import fault, installation
    from localpuppet.node.releases import staging
    from localpuppet.node.releases.git import mirrors
    from localpuppet.node.releases.packages import directory, package_staging
    from localpuppet.node.runs import interface_reader, preparing, supervisor

    _ = (package_staging, directory, staging, supervisor, mirrors, installation, processes)
    _ = (interface_reader, preparing, fault)
    _ = node.settings


def start_server(node: NodeApp, limits: ServerLimits = LIMITS) -> KeptProcess:
    """Start a node's fork server."""
    server = node.fork_server
    installation = node.find_puppet(ask=False)
    if installation is None:
        raise UnavailableError("Puppet was changed; the next run reads its settings again")
    if len(bytes(server.path)) > MAX_PATH:
        raise UnavailableError("is too long for a socket's name", where=str(server.path))
    make_private(server.path.parent)
    command, env = server_command(
        installation,
        base=program_environment(),
        lean=node.lean_start(installation),
        script=shared_file("fork_server.rb"),
        socket=server.path,
        names=server.path.with_suffix(".names"),
        limits=limits,
    )
    process = start_kept(command, env=env)
    try:
        server.note(process.identity)
    except StateError:
        process.end()
        process.code()
        raise
    return process
