"""Run a command that ends when its caller does: a guard process watches over it.

    caller ── guard ── command ── what the command starts

- If the caller dies, or does not extend the deadline in time, the guard kills the command and all
  its descendants, also those that left its process group.
- If the guard dies, the kernel kills the command and the caller kills the rest.
- Only if caller and guard are killed at the same moment do the command's descendants survive.
- The guard is forked before the caller has threads, and so is the command.
"""

import asyncio
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from localpuppet.base.machine.ports import ProcessId
from localpuppet.base.machine.process_table import SystemProcessTable

# Seconds between TERM and KILL after the caller died, if the deadline leaves that much.
GRACE = 5.0
# Signals that the guard ignores: a terminal sends them to all; the guard ends with its caller.
_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TABLE = SystemProcessTable()


class GuardedProcess:
    """A guarded command, not started yet.

    Create it before the program has threads: it forks.

    Args:
        own_group: Whether the command gets its own process group, which signals then reach.
    """

    def __init__(self, command: Sequence[str], *, own_group: bool) -> None:
        hear, self._tell = os.pipe2(os.O_CLOEXEC)
        self._hear, tell = os.pipe2(os.O_CLOEXEC)
        _control(_PR_SET_CHILD_SUBREAPER, 1)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._tell)
            os.close(self._hear)
            _Guard(command, hear, tell, own_group=own_group).be()
        os.close(hear)
        os.close(tell)
        self._answers: asyncio.StreamReader | None = None

    async def start(self, *, until: float, more: Mapping[str, str]) -> None:
        """Start the command.

        Args:
            until: Monotonic seconds; the guard kills it then, unless `good_until` extends that.
            more: Variables to add to the inherited environment.

        Raises:
            OSError: The command cannot be started.
        """
        self._answers = asyncio.StreamReader()
        reader = self._answers
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._hear, "rb", 0)
        )
        _send(self._tell, do="start", until=until, more=dict(more))
        code = await self._word("started")
        if code is None:
            raise ChildProcessError(0, "its watching process was killed")
        if code:
            raise OSError(code, os.strerror(code))

    def good_until(self, until: float) -> None:
        """Extend the command's deadline to `until` (monotonic seconds)."""
        _send(self._tell, do="until", until=until)

    def signal(self, number: int) -> None:
        """Signal the command; if it has its own group, also what it started."""
        _send(self._tell, do="signal", number=number)

    def kill(self) -> None:
        """Kill the command and all its descendants."""
        _send(self._tell, do="kill")

    async def wait(self) -> int | None:
        """Return the command's exit code, `-N` for signal N; `None` if the guard was killed.

        In that case, all its descendants are killed.
        """
        code = await self._word("ended")
        if code is None:
            await asyncio.to_thread(_kill_all)
        return code

    def close(self) -> None:
        """End the guard, which ends what still runs."""
        os.close(self._tell)
        if self._answers is None:
            os.close(self._hear)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    async def _word(self, wanted: str) -> int | None:
        """Return the number in the guard's next message."""
        if self._answers is None:
            raise AssertionError("it is started first")
        line = await self._answers.readline()
        return int(json.loads(line)[wanted]) if line else None


class _Guard:
    """The guard, in its own process."""

    def __init__(self, command: Sequence[str], hear: int, tell: int, *, own_group: bool) -> None:
        self._command = list(command)
        self._hear = hear
        self._tell = tell
        self._own_group = own_group
        self._callers = os.getpgrp()
        self._received = b""
        self._until = 0.0
        self._pid = 0
        self._ended: int | None = None

    def be(self) -> NoReturn:
        """Run the guard, and never return."""
        code = 70
        try:
            ignored = {number for number in _OURS if signal.getsignal(number) is signal.SIG_IGN}
            for number in _OURS:
                signal.signal(number, signal.SIG_IGN)
            # If the caller's process group is killed, the command must end.
            os.setpgid(0, 0)
            _control(_PR_SET_CHILD_SUBREAPER, 1)
            self._guard(ignored)
            code = 0
        finally:
            os._exit(code)

    def _guard(self, ignored: set[signal.Signals]) -> None:
        for words in self._words():
            if words["do"] == "start":
                self._until = words["until"]
                problem = self._start({**os.environ, **words["more"]}, ignored)
                _send(self._tell, started=problem)
                if problem:
                    return
                break
        else:
            return
        ended = os.pidfd_open(self._pid)
        while self._ended is None:
            left = max(self._until - time.monotonic(), 0)
            ready = select.select([ended, self._hear], [], [], left)[0]
            self._reap()
            if not ready:
                _kill_all(self._reap)
            elif self._hear in ready:
                self._obey()
        _send(self._tell, ended=self._ended)

    def _obey(self) -> None:
        data = os.read(self._hear, 65536)
        if not data:
            self._end()
            return
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            words = json.loads(line)
            if words["do"] == "until":
                self._until = words["until"]
            elif words["do"] == "signal":
                self._signal(words["number"])
            else:
                _kill_all(self._reap)

    def _words(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that arrive before the command starts."""
        while data := os.read(self._hear, 65536):
            self._received += data
            while b"\n" in self._received:
                line, _, self._received = self._received.partition(b"\n")
                yield json.loads(line)

    def _start(self, env: Mapping[str, str], ignored: set[signal.Signals]) -> int:
        """Start the command; return the errno of a failure, or 0."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        me = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setpgid(0, 0 if self._own_group else self._callers)
                for number in (*_OURS, signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
                _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == me:
                    os.execvpe(self._command[0], self._command, env)  # noqa: S606 - as is meant
            except OSError as error:
                os.write(writer, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(writer)
        problem = os.read(reader, 100)
        os.close(reader)
        if problem:
            os.waitpid(self._pid, 0)
        return int(problem or 0)

    def _signal(self, number: int) -> None:
        """Signal the command; it is not reaped yet, so its pid is not reused."""
        if self._ended is not None:
            return
        with suppress(ProcessLookupError):
            (os.killpg if self._own_group else os.kill)(self._pid, number)

    def _end(self) -> None:
        """End everything below the guard: the caller is gone."""
        _TABLE.signal(_descendants(), signal.SIGTERM)
        deadline = min(time.monotonic() + GRACE, self._until)
        while time.monotonic() < deadline and _descendants():
            time.sleep(0.02)
            self._reap()
        _kill_all(self._reap)

    def _reap(self) -> None:
        """Reap ended children: the command, and orphans that the guard inherited."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._ended = os.waitstatus_to_exitcode(status)


def _send(tell: int, **words: object) -> None:
    """Write a message to the other side; its end is fine."""
    with suppress(BrokenPipeError):
        os.write(tell, json.dumps(words).encode() + b"\n")


def _descendants() -> list[ProcessId]:
    return _TABLE.family(_TABLE.me())[1:]


def _kill_all(reap: Callable[[], None] = lambda: None) -> None:
    """Kill all descendants of this process, until none is left."""
    pause = 0.001
    while rest := _descendants():
        _TABLE.signal(rest, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
        reap()
    reap()


def _control(option: int, value: int) -> None:
    """Call prctl(2), for which Python has no binding."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
