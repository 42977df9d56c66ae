"""Child processes of this machine (Linux): start and wait for them.

A child writes into an anonymous file in memory, not into a pipe; `machine.child` says why.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.child import Cgroup, OutputPipe, OwnGroup, SystemChild, make_output
from localpuppet.base.machine.ports import Child, Output
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
        self._wakeup = -1

    def watch_signals(self) -> None:
        """Count INT and TERM instead of dying from them; ignore HUP."""
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
        """Return the number of INT and TERM signals received."""
        return self._cancelled

    def sleep(self, seconds: float, *, watching: Collection[int] = ()) -> None:
        """Sleep until a signal arrives or a descriptor is readable.

        Args:
            seconds: Maximum time.
            watching: The descriptors to watch.
        """
        if self._wakeup < 0:
            select.select(watching, [], [], min(seconds, 0.02))
            return
        if self._wakeup in select.select([self._wakeup, *watching], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, keep: int, group: str
    ) -> Child:
        """Start a child; see `base.machine.ports.Processes`."""
        output = make_output(group)
        os.set_inheritable(keep, True)
        try:
            pid = spawn(argv, env=env, cwd=cwd, out=output, err=output)
        except OSError as error:
            os.close(output)
            raise StateError(
                f"cannot be started: {error.strerror}", where=str(argv[0]), hint="is it installed?"
            ) from error
        finally:
            os.set_inheritable(keep, False)
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
        argv: Absolute program and arguments.
        env: Its whole environment.
        cwd: Its working directory.
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
        env: Its environment.

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
