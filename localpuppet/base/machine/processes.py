"""Child processes of this machine (Linux): start them, bound them, keep them, and wait for them.

- A child writes into an anonymous file in memory, not into a pipe; `machine.child` says why.
- The wrappers of `mortal` and `limited` are util-linux's, which every Debian has. A missing program
  raises `StateError`.
- A kept process (`start_kept`) has as its input a pipe whose other end only localpuppet has: it
  reads the end of that input when localpuppet ends, for whatever reason.
- glibc gives each thread another heap, up to eight a core. Other threads cannot use what one thread
  freed, so a process whose threads read a database keeps the same memory several times:
  `share_heap` limits that.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.child import Cgroup, OutputPipe, OwnGroup, SystemChild, make_output
from localpuppet.base.machine.ports import Child, Output, ProcessId
from localpuppet.base.machine.process_table import SystemProcessTable

# What ends a process that does not handle it, besides KILL.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextlib.contextmanager
def own_umask(mask: int = 0o022) -> Iterator[None]:
    """Use a umask in a block, whatever the caller's is: for files that another user has to read."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def unwound_by_signals() -> Iterator[None]:
    """End a block by an exception for a signal, so that it removes its files; then ignore others.

    Call it in the main thread. A signal that the caller ignores stays ignored.

    Raises:
        KeyboardInterrupt: INT arrived.
        SystemExit: Another signal arrived; the code is 128 and its number, as a shell shows it.
    """
    handled = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]

    def end(number: int, _frame: object) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class SystemProcesses(SystemProcessTable):
    """Starts children, and counts the signals that this process receives.

    Call `watch_signals` once, in the main thread, before a child is started.
    """

    def __init__(self) -> None:
        self._cancelled = 0
        self.interrupted = False  # by ^C
        self._wakeup = -1

    def watch_signals(self) -> None:
        """Count INT and TERM instead of dying from them; ignore HUP."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wakeup = reader

        def cancel(number: int, _frame: object) -> None:
            self._cancelled += 1
            self.interrupted = self.interrupted or number == signal.SIGINT

        signal.signal(signal.SIGINT, cancel)
        signal.signal(signal.SIGTERM, cancel)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def cancellations(self) -> int:
        """Return the number of INT and TERM signals received."""
        return self._cancelled

    def sleep(self, seconds: float, *, watching: Collection[int] = ()) -> None:
        """Sleep until a signal arrives or a descriptor is readable."""
        if self._wakeup < 0:
            select.select(watching, [], [], min(seconds, 0.02))
            return
        if self._wakeup in select.select([self._wakeup, *watching], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        keep: Sequence[int],
        group: str,
    ) -> Child:
        """Start a child; see `base.machine.ports.Processes`."""
        output = make_output(group)
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        try:
            pid = spawn(argv, env=env, cwd=cwd, out=output, err=output)
        except OSError as error:
            os.close(output)
            raise StateError(
                f"cannot be started: {error.strerror}", where=str(argv[0]), hint="is it installed?"
            ) from error
        finally:
            for descriptor in keep:
                os.set_inheritable(descriptor, False)
        return SystemChild(self, OwnGroup(pid), output, Cgroup.make(group))

    def capture(
        self, argv: Sequence[str], *, env: Mapping[str, str], timeout: float, limit: int
    ) -> Output | None:
        """Run a command to its end; see `base.machine.ports.Processes`."""
        out, err = OutputPipe(limit), OutputPipe(limit)
        try:
            try:
                group = OwnGroup(spawn(argv, env=env, cwd=Path("/"), out=out.fd, err=err.fd))
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
                # Its descendants in the group end with it, also after an interrupt.
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
        """Read a command's output; return after 20 ms, or when a signal arrives."""
        left = [pipe for pipe in pipes if not pipe.ended]
        self.sleep(0.02, watching=[pipe.fileno() for pipe in left])
        for pipe in left:
            pipe.read()


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    out: int,
    err: int,
    stdin: int | None = None,
) -> int:
    """Start a group leader with default signals; posix_spawn costs 1 ms and no import.

    Args:
        out: The descriptor of its standard output.
        err: The descriptor of its standard error.
        stdin: The descriptor of its standard input; `None` for an empty input.

    Raises:
        OSError: The process cannot be started.
    """
    handled = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE]
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(cwd)
        return os.posix_spawn(
            argv[0],
            list(argv),
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
                if stdin is None
                else (os.POSIX_SPAWN_DUP2, stdin, 0),
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


def detach(announce: Callable[[], None]) -> Callable[[], None]:
    """Fork a daemon and return in it only.

    Args:
        announce: Called in the calling process when the daemon is ready; that process then exits 0.

    Returns:
        What the daemon calls when it is ready.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    first = os.fork()
    if first:
        # This process must never unwind: that would undo what the daemon holds.
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

    def report_ready() -> None:
        os.write(writer, b"1")
        os.close(writer)

    return report_ready


def start_apart(argv: Sequence[str], *, env: Mapping[str, str]) -> None:
    """Start a command that runs independently: in its own session, without output.

    Args:
        argv: The command; its first word is an absolute path.

    Raises:
        StateError: The command cannot be started.
    """
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    try:
        os.posix_spawn(
            argv[0], list(argv), env, file_actions=null, setsid=True, setsigdef=[signal.SIGINT]
        )
    except OSError as error:
        raise StateError(f"cannot be started: {error.strerror}", where=str(argv[0])) from error


def find_programs(*programs: str, path: str, package: str) -> list[str]:
    """Return the paths of programs.

    Args:
        package: The package to install if one is missing.
    """
    places = []
    for name in programs:
        place = shutil.which(name, path=path)
        if place is None:
            raise StateError(f"{name} is not installed", hint=f"apt-get install {package}")
        places.append(place)
    return places


def mortal(argv: Sequence[str], *, path: str) -> list[str]:
    """Return a command that runs `argv` and is killed when the thread that started it ends.

    Processes that the program starts are not killed.
    """
    (setpriv,) = find_programs("setpriv", path=path, package="util-linux")
    return [setpriv, "--pdeathsig=KILL", "--", *argv]


def limited(argv: Sequence[str], *, limits: Mapping[str, int], path: str) -> list[str]:
    """Return a command that runs `argv` with limits: names as in prlimit(1), and -1 for none."""
    (prlimit,) = find_programs("prlimit", path=path, package="util-linux")
    return [prlimit, *(f"--{name}={limit}" for name, limit in limits.items()), "--", *argv]


class KeptProcess:
    """A started process; see `start_kept`."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._group = OwnGroup(pid)
        self._pipe = pipe
        self.identity: ProcessId = SystemProcessTable().identify(pid)

    def end(self) -> None:
        """Send TERM; an ended process is fine."""
        self._group.signal(signal.SIGTERM)

    def code(self) -> int:
        """Wait for the end and return the exit code; `-N` for signal N."""
        ended = self._group.poll(block=True)
        self._group.reap()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if ended is None or ended.code is None:
            return -(ended.signal or 0) if ended else 0
        return ended.code


def start_kept(argv: Sequence[str], *, env: Mapping[str, str]) -> KeptProcess:
    """Start a process whose standard input ends when localpuppet does.

    Args:
        argv: The command; its first word is an absolute path. Its output goes to localpuppet's
            standard error.

    Raises:
        StateError: The process cannot be started.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = spawn(argv, env=env, cwd=Path("/"), out=2, err=2, stdin=reader)
    except OSError as error:
        os.close(writer)
        raise StateError(f"cannot be started: {error.strerror}", where=str(argv[0])) from error
    finally:
        os.close(reader)
    return KeptProcess(pid, writer)


_M_ARENA_MAX = -8  # of malloc.h


def share_heap() -> None:
    """Have all threads use one heap; call this before the first thread starts.

    A C library without this option, such as musl, does so anyway.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
