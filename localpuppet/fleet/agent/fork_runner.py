"""The `Runner` that forks a child process for each run, with localpuppet's supervisor.

- A child, not a thread: the supervisor handles signals, and survives when the agent is killed.
- A fork, not a new process: starting Python and importing would add 100 ms between a trigger and
  Puppet.
- The child uses none of the agent's connections, signal handlers or event loops, and ends with
  `os._exit`.
- If a child dies without a report, the run counts as ended only if the child had reported its
  start. The record has the rest.
- Two commands never run at once, even if the agent that started the first was killed.
- If a process cannot start for lack of memory or the like, the agent tries the run again.
"""

import asyncio
import contextlib
import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Generic, TypeVar

from localpuppet.base.errors import thread_shortage
from localpuppet.base.formats.strict_json import loads
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion

_MAX_WORD = 64 * 1024
_REPORT = 3
_BEGUN = b"\n"  # sent before the report; JSON ignores it
# Errors that pass: a shortage of resources, or a program that is being replaced.
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
Begun = Callable[[], None]
Work = TypeVar("Work")  # the work of a child: a run's order, a deployment


class ForkRunner(Generic[Work]):
    """Executes runs, or other long work, in child processes.

    Args:
        work: Executes one run in the child and returns its result; calls its second argument when
            the run begins.
    """

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
