"""A program that is run to its end within bounds: of time and memory, of what it says and writes.

Owns: how it is started, listened to and ended. Refuses to know: which program it is, and what
follows when it is stopped.

Invariants: neither it nor a program that it started in its session outlives the call, and whatever
it says, no more of that is ever held than its bounds allow.
"""

import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from localpuppet.base.machine.child import OwnGroup
from localpuppet.base.machine.output_pipe import OutputPipe

if TYPE_CHECKING:
    import subprocess


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a program may take.

    Attributes:
        seconds: Until it is killed.
        said: Bytes of its standard output; it is killed when there are more.
        errors: Bytes that are kept of its standard error: the beginning.
        memory: Bytes of memory, of it and of each program that it starts.
        file: Bytes of the largest file that one of these writes; `None` for any.
    """

    seconds: float
    said: int
    errors: int
    memory: int
    file: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a program ended.

    Attributes:
        code: Its exit code; the number of a signal, negative.
        out: What is kept of its standard output.
        err: What is kept of its standard error.
        flooded: Whether it said more than it may.
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
) -> Done:
    """Run a program to whatever end.

    Args:
        argv: Its words.
        env: Its environment, all of it.
        cwd: Where it runs.
        bounds: What it may take.
        stdin: What it is to read.

    Raises:
        FileNotFoundError: It is not there.
    """
    out, err = OutputPipe(bounds.said), OutputPipe(bounds.errors)
    try:
        with (
            _readable(stdin) as given,
            start_session(
                argv, env=env, cwd=cwd, stdin=given.fileno(), out=out.fd, err=err.fd
            ) as process,
        ):
            for what, most in (
                (resource.RLIMIT_DATA, bounds.memory),
                (resource.RLIMIT_FSIZE, bounds.file),
            ):
                resource.prlimit(process.pid, what, _limit(what, most))
            in_time = _listen(process.pid, out, err, time.monotonic() + bounds.seconds)
        return Done(
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
    """Run a program in a new session; kill what is left of its process group at the end.

    A program that is killed leaves those that it started: a git that waits for its transport, say,
    leaves the transport. A program without a terminal cannot ask a person for anything, either.

    Args:
        argv: Its words.
        env: Its environment, all of it.
        cwd: Where it runs.
        stdin: The descriptor of its standard input, or `subprocess.DEVNULL`.
        out: The descriptor of its standard output, or `subprocess.PIPE`.
        err: The descriptor of its standard error, or `subprocess.DEVNULL`.

    Raises:
        FileNotFoundError: It is not there.
    """
    import subprocess  # not paid for where nothing is started

    with subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=stdin, stdout=out, stderr=err, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            # Before the leader is reaped: until then its number is the group's.
            OwnGroup(process.pid).signal(signal.SIGKILL)


def _limit(what: int, wanted: int | None) -> tuple[int, int]:
    """Return a limit of ours, or a lower one that is there already."""
    _, most = resource.getrlimit(what)
    there = None if most == resource.RLIM_INFINITY else most
    limits = [limit for limit in (there, wanted) if limit is not None]
    limit = min(limits, default=resource.RLIM_INFINITY)
    return limit, limit


def _readable(data: bytes) -> "IO[bytes]":
    """Return a file that a program reads some bytes from."""
    if not data:
        return Path(os.devnull).open("rb")
    file = os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b")
    file.write(data)
    file.seek(0)
    return file


def _listen(pid: int, out: OutputPipe, err: OutputPipe, deadline: float) -> bool:
    """Take what a program says until it has ended or says too much; return whether in time."""
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
