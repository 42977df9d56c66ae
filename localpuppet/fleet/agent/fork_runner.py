"""How the agent runs: our own supervisor, in a child that is forked for the run.

Owns: the fork, what the child keeps of its parent, and how it reports. A child instead of a thread,
because the supervisor owns signals and lives on when the agent is killed; a fork instead of a new
process, because starting Python and importing costs 100 ms of the way from a trigger to Puppet.

Invariants: the child has none of the agent's connections, signal handlers or event loop; it ends
by `os._exit`, so nothing of the agent's is finished twice; a child that dies without a word is said
to be over only when it had told that its run begins: its record says the rest; two commands never
run at once, also when the agent that started the first was killed; a process that could not be made
for want of memory or the like is not a reason to give a run up.
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
from localpuppet.fleet.agent.runner import Fate, RunEnd

_MAX_WORD = 64 * 1024
_REPORT = 3
_BEGUN = b"\n"  # before the report; to a reader of JSON it is nothing
# What a machine has too little of for a while; and a program that is being replaced.
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
Begun = Callable[[], None]
Work = TypeVar("Work")  # what a child is to do: a run's order, a deployment


class ForkRunner(Generic[Work]):
    """Does runs in children, or what else is too much for the agent itself.

    Args:
        work: Does one run, in the child, and returns how it went; calls its second argument when
            the run begins.
    """

    def __init__(self, work: Callable[[Work, Begun], RunEnd]) -> None:
        self._work = work
        self._pid = 0
        gc.collect()
        gc.freeze()  # what is here now stays shared with the children

    async def run(self, order: Work) -> RunEnd:
        """Do a run; see `fleet.agent.runner.Runner`."""
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
        """Ask the run that is on to end."""
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


def _child(work: Callable[[Work, Begun], RunEnd], order: Work, writer: int) -> None:
    """Do the run and never return."""
    code = 70
    try:
        # What the agent left for its collector must not be finished here: it would close files by
        # numbers that are ours by then.
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


def not_started(error: OSError, what: str) -> RunEnd:
    """Return what became of a run whose process could not be made."""
    fate = Fate.BUSY if error.errno in _SCARCE else Fate.IMPOSSIBLE
    return RunEnd(fate=fate, reason=f"{what}: {error.strerror or error}")


def _tell(word: bytes) -> None:
    """Tell the agent; where it was killed meanwhile, nobody: the run goes on."""
    with contextlib.suppress(BrokenPipeError):
        os.write(_REPORT, word)


def _understand(said: bytes, code: int) -> RunEnd:
    try:
        raw = loads(said)
        return RunEnd(**{**raw, "fate": Fate(raw["fate"])})
    except (ValueError, KeyError, TypeError):
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
    if said.startswith(_BEGUN):
        return RunEnd(fate=Fate.OVER, outcome="interrupted", reason=f"its supervisor died ({how})")
    # Nothing ran, so nobody is served by it. A kill was not the run's doing: it is tried again.
    fate = Fate.BUSY if code < 0 else Fate.IMPOSSIBLE
    return RunEnd(fate=fate, reason=f"its supervisor died before it began ({how})")
