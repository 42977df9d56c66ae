"""Run a program to its end within bounds of time, memory, output and file size.

- When the call returns, the program and every program that it started in its session have ended.
- localpuppet never holds more of the output than the bounds allow.
- prlimit(1) sets the limits before the program starts. Set from outside, they come too late for
  what the program has started by then.
"""

import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from localpuppet.base.machine.child import OwnGroup
from localpuppet.base.machine.confinement import limited
from localpuppet.base.machine.output_pipe import OutputPipe

if TYPE_CHECKING:
    import subprocess


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of a program.

    Attributes:
        seconds: Time until it is killed.
        output: Bytes of standard output; it is killed when there are more.
        errors: Bytes of standard error to keep: the beginning.
        memory: Bytes of memory, for it and for each program that it starts.
        file: Bytes of the largest file that one of these writes; `None` for no limit.
    """

    seconds: float
    output: int
    errors: int
    memory: int
    file: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """The result of a program.

    Attributes:
        code: Its exit code; `-N` for signal N.
        out: Its standard output, up to the limit.
        err: Its standard error, up to the limit.
        flooded: Whether its standard output exceeded the limit.
        in_time: Whether it ended in time.
    """

    code: int
    out: bytes
    err: bytes
    flooded: bool
    in_time: bool


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    bounds: Bounds,
    stdin: bytes = b"",
) -> ProgramResult:
    """Run a program within its bounds and return its result.

    Args:
        argv: Program and arguments.
        env: Its whole environment.
        cwd: Its working directory.
        bounds: Its limits.
        stdin: Its standard input.

    Raises:
        FileNotFoundError: The program does not exist.
        StateError: prlimit is not installed.
    """
    path = env.get("PATH", os.defpath)
    program = shutil.which(argv[0], path=path)
    if program is None:
        raise FileNotFoundError(argv[0])
    limits = {
        "data": _limit(resource.RLIMIT_DATA, bounds.memory),
        "fsize": _limit(resource.RLIMIT_FSIZE, bounds.file),
    }
    command = limited([program, *argv[1:]], limits=limits, path=path)
    out, err = OutputPipe(bounds.output), OutputPipe(bounds.errors)
    try:
        with (
            _readable(stdin) as given,
            start_session(
                command, env=env, cwd=cwd, stdin=given.fileno(), out=out.fd, err=err.fd
            ) as process,
        ):
            in_time = _listen(process.pid, out, err, time.monotonic() + bounds.seconds)
        return ProgramResult(
            code=process.returncode,
            out=out.data,
            err=err.data,
            flooded=out.flooded,
            in_time=in_time,
        )
    finally:
        out.close()
        err.close()


@contextmanager
def start_session(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: int, out: int, err: int
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a program in a new session; at the end, kill what is left of its process group.

    A killed program leaves its children behind: a git that waits for its transport leaves the
    transport. Without a terminal, the program cannot prompt a person.

    Args:
        argv: Program and arguments.
        env: Its whole environment.
        cwd: Its working directory.
        stdin: The descriptor of its standard input, or `subprocess.DEVNULL`.
        out: The descriptor of its standard output, or `subprocess.PIPE`.
        err: The descriptor of its standard error, or `subprocess.DEVNULL`.

    Raises:
        FileNotFoundError: The program does not exist.
    """
    import subprocess  # imported only when a program starts

    with subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=stdin, stdout=out, stderr=err, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            # Before the leader is reaped: until then, its number is the group's.
            OwnGroup(process.pid).signal(signal.SIGKILL)


def _limit(what: int, wanted: int | None) -> int:
    """Return the wanted limit, or the current one if that is lower; -1 for no limit."""
    _, most = resource.getrlimit(what)
    limits = [limit for limit in (most, wanted) if limit not in (None, resource.RLIM_INFINITY)]
    return min(limits, default=resource.RLIM_INFINITY)


def _readable(data: bytes) -> "IO[bytes]":
    """Return a file from which a program reads `data`."""
    if not data:
        return Path(os.devnull).open("rb")
    file = os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b")
    file.write(data)
    file.seek(0)
    return file


def _listen(pid: int, out: OutputPipe, err: OutputPipe, deadline: float) -> bool:
    """Read a program's output until it ends or exceeds a limit; return whether it was in time."""
    from selectors import EVENT_READ, DefaultSelector

    end = os.pidfd_open(pid)
    try:
        with DefaultSelector() as waiting:
            waiting.register(end, EVENT_READ)
            for pipe in (out, err):
                pipe.started()
                waiting.register(pipe, EVENT_READ, pipe)
            while waiting.get_map() and not out.flooded:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                for key, _ in waiting.select(left):
                    if key.data is not None:
                        key.data.read()
                    if key.data is None or key.data.ended:
                        waiting.unregister(key.fileobj)
        return True
    finally:
        os.close(end)
