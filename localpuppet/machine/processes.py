"""Processes of this machine (Linux).

Owns: starting Puppet in its process group and cgroup, collecting its output, ending it, telling
one process from a later one with the same pid, signals to us. Refuses to know: what is run.

A child writes into an anonymous file in memory, not into a pipe: when we are killed, it goes on
writing into it and its run ends as it should, where a closed pipe would kill it in mid-catalog,
and a full disk cannot reach it either (ADR 4).
"""

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from localpuppet.errors import StateError
from localpuppet.machine.cgroup import Cgroup
from localpuppet.machine.output_pipe import OutputPipe
from localpuppet.machine.ports import Child, Ended, Output, ProcessId

CHUNK = 65536


class _Group:
    """A child that leads its own process group.

    It is reaped last of all: until then its pid, and so its group's id, cannot be somebody else's.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: Ended | None = None

    def poll(self, *, block: bool = False) -> Ended | None:
        """Return how the leader ended, once it has."""
        if self.ended is None:
            options = os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG)
            result = os.waitid(os.P_PID, self.pid, options)
            if result:
                by_exit = result.si_code == os.CLD_EXITED
                self.ended = Ended(
                    code=result.si_status if by_exit else None,
                    signal=None if by_exit else result.si_status,
                )
        return self.ended

    def signal(self, number: int) -> None:
        """Signal every member of the group; none is fine."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def reap(self) -> None:
        """Forget an ended leader."""
        if self.ended is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


class SystemProcesses:
    """Processes of this machine.

    Call `watch_signals` once, in the main thread, before a child is started.
    """

    def __init__(self) -> None:
        self._cancelled = 0
        self._wakeup = -1

    def watch_signals(self) -> None:
        """Count INT and TERM instead of dying of them; outlive the terminal (HUP)."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wakeup = reader

        def cancel(_number: int, _frame: object) -> None:
            self._cancelled += 1

        signal.signal(signal.SIGINT, cancel)
        signal.signal(signal.SIGTERM, cancel)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def cancellations(self) -> int:
        """Return how often INT or TERM came."""
        return self._cancelled

    def sleep(self, seconds: float) -> None:
        """Sleep until a signal comes, at most `seconds`."""
        if self._wakeup < 0:
            time.sleep(min(seconds, 0.02))
            return
        if select.select([self._wakeup], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)

    def me(self) -> ProcessId:
        """Return this process."""
        return self.identify(os.getpid())

    def identify(self, pid: int) -> ProcessId:
        """Return the identity of a running process; `started` is 0 when it is gone."""
        return ProcessId(pid=pid, boot_id=_boot_id(), started=_started(pid))

    def alive(self, process: ProcessId) -> bool:
        """Return whether that very process still runs."""
        return process.started > 0 and self.identify(process.pid) == process

    def family(self, process: ProcessId) -> list[ProcessId]:
        """Return a process and everything below it that runs; nothing once it has ended."""
        if not self.alive(process):
            return []
        found = [process, *_descendants(self, process.pid)]
        return [one for one in found if one.started]

    def signal(self, processes: Iterable[ProcessId], number: int) -> None:
        """Signal those of some processes that still run; none is fine."""
        for process in processes:
            if self.alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def command_line(self, pid: int) -> list[str]:
        """Return the arguments of a running process; empty when there is none."""
        try:
            data = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return []
        return data.decode("utf-8", "replace").split("\0")[:-1]

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, keep: int, group: str
    ) -> Child:
        """Start a child; see `machine.ports.Processes`.

        Raises:
            StateError: It could not be started.
        """
        output = os.memfd_create(f"{group}-output", os.MFD_CLOEXEC)
        # Appending, so that nothing is lost when the child's children reopen /dev/stdout.
        fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)
        os.set_inheritable(keep, True)
        try:
            pid = _spawn(argv, env=env, cwd=cwd, out=output, err=output)
        except OSError as error:
            os.close(output)
            raise StateError(
                f"cannot be started: {error.strerror}", where=str(argv[0]), hint="is it installed?"
            ) from error
        finally:
            os.set_inheritable(keep, False)
        return _SystemChild(self, pid, output, Cgroup.make(group))

    def capture(
        self, argv: Sequence[str], *, env: Mapping[str, str], timeout: float, limit: int
    ) -> Output | None:
        """Run a command to its end; see `machine.ports.Processes`.

        Raises:
            StateError: It could not be started.
        """
        out, err = OutputPipe(limit), OutputPipe(limit)
        try:
            try:
                group = _Group(_spawn(argv, env=env, cwd=Path("/"), out=out.fd, err=err.fd))
            except OSError as error:
                raise StateError(
                    f"cannot be started: {error.strerror}", where=str(argv[0])
                ) from error
            out.started()
            err.started()
            deadline = time.monotonic() + timeout
            try:
                while group.poll() is None and time.monotonic() < deadline and not out.flooded:
                    if self._cancelled:
                        break
                    self._await_output(out, err)
                in_time = group.ended is not None or out.flooded
            finally:
                # What it left behind ends with it, also when we are interrupted.
                group.signal(signal.SIGKILL)
                ended = group.poll(block=True)
                group.reap()
            if not in_time or ended is None:
                return None
            out.drain()
            err.drain()
            return Output(ended=ended, stdout=out.data, stderr=err.data)
        finally:
            out.close()
            err.close()

    def _await_output(self, *pipes: OutputPipe) -> None:
        """Read what a command writes; look up now and then, and when a signal comes."""
        there: list[OutputPipe | int] = [pipe for pipe in pipes if not pipe.ended]
        if self._wakeup >= 0:
            there.append(self._wakeup)
        for found in select.select(there, [], [], 0.02)[0]:
            if isinstance(found, OutputPipe):
                found.read()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(found, 4096)


def _spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, out: int, err: int) -> int:
    """Start a group leader with clean signals; posix_spawn costs 1 ms and imports nothing."""
    handled = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE]
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(cwd)
        return os.posix_spawn(
            argv[0],
            list(argv),
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ],
            setpgroup=0,
            setsigdef=handled,
            setsigmask=[],
        )
    finally:
        os.fchdir(here)
        os.close(here)


class _SystemChild:
    """A started Puppet."""

    def __init__(
        self, processes: SystemProcesses, pid: int, output: int, cgroup: Cgroup | None
    ) -> None:
        self._processes = processes
        self._group = _Group(pid)
        self._output = output
        self._position = 0
        self._freed = 0
        self._cgroup = cgroup
        self._family: set[ProcessId] = set()
        self.identity = processes.identify(pid)
        if cgroup:
            cgroup.add(pid)

    def wait(self, seconds: float) -> Ended | None:
        if self._group.poll() is None:
            self._processes.sleep(seconds)
        return self._group.poll()

    def read(self) -> bytes:
        size = os.fstat(self._output).st_size
        if size < self._position:  # a grandchild opened /dev/stdout and emptied it
            self._position = self._freed = 0
        data = os.pread(self._output, CHUNK, self._position)
        self._position += len(data)
        self._release_memory()
        return data

    def _release_memory(self) -> None:
        if self._position - self._freed > 4 * 1024 * 1024:
            _free(self._output, self._freed, self._position - self._freed)
            self._freed = self._position

    def skip(self) -> None:
        """Take everything that was written as read."""
        self._position = os.fstat(self._output).st_size
        self._release_memory()

    def end(self, *, kill: bool) -> None:
        # Puppet gives each command a session of its own, which a signal to our group does not
        # reach; and when Puppet is gone, nothing says any more that they were its children.
        self._family.update(_descendants(self._processes, self._group.pid))
        self._group.signal(signal.SIGKILL if kill else signal.SIGTERM)
        if kill and self._cgroup:
            self._cgroup.kill()
        if kill:
            self._processes.signal(self._family, signal.SIGKILL)

    def release(self) -> None:
        self._group.reap()
        os.close(self._output)
        if self._cgroup:
            self._cgroup.remove()


def detach(announce: Callable[[], None]) -> Callable[[], None]:
    """Go on in a daemon of our own; return there only.

    Args:
        announce: Called in the calling process when the daemon says that it is ready; that process
            then exits 0.

    Returns:
        What the daemon calls when it is ready.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    first = os.fork()
    if first:
        # Whatever happens here, this process must not unwind: it would undo what the daemon holds.
        code = 1
        try:
            os.close(writer)
            ready = os.read(reader, 1)
            os.waitpid(first, 0)
            if ready:
                announce()
                code = 0
        finally:
            os._exit(code)
    try:
        os.setsid()
        second = os.fork()
    except OSError:
        os._exit(1)
    if second:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)

    def say_ready() -> None:
        os.write(writer, b"1")
        os.close(writer)

    return say_ready


def start_apart(argv: Sequence[str], *, env: Mapping[str, str]) -> None:
    """Start a command that goes on by itself: in a session of its own, heard by nobody.

    Args:
        argv: The command; its first word is an absolute path.
        env: Its environment.

    Raises:
        StateError: It could not be started.
    """
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    try:
        os.posix_spawn(
            argv[0], list(argv), env, file_actions=null, setsid=True, setsigdef=[signal.SIGINT]
        )
    except OSError as error:
        raise StateError(f"cannot be started: {error.strerror}", where=str(argv[0])) from error


def _free(fd: int, start: int, length: int) -> None:
    """Give back the memory of what was read; Python has no binding for it."""
    import ctypes

    keep_size, punch_hole = 1, 2
    ctypes.CDLL(None, use_errno=True).fallocate(
        fd, keep_size | punch_hole, ctypes.c_int64(start), ctypes.c_int64(length)
    )


def _descendants(processes: SystemProcesses, root: int) -> list[ProcessId]:
    """Return the processes below `root`, as /proc tells them now."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    pending = [root]
    while pending:
        children = parents.get(pending.pop(), [])
        found += children
        pending += children
    return [processes.identify(pid) for pid in found]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return []
    # The command in parentheses may hold spaces and parentheses of its own.
    return text.rpartition(")")[2].split()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _started(pid: int) -> int:
    """Return the start time of `pid` in ticks since boot; 0 when it is gone or a zombie."""
    fields = _stat(pid)
    return 0 if not fields or fields[0] in ("Z", "X") else int(fields[19])
