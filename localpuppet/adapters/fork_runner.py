"""Runs in a forked child: warm, and alone with Puppet.

Owns: the fork, what the child keeps of its parent, and how it reports. A child instead of a thread,
because the supervisor owns signals and lives on when the agent is killed; a fork instead of a new
process, because starting Python and importing costs 100 ms of the way from a trigger to Puppet.

Invariants: the child has none of the agent's connections, signal handlers or event loop; it ends
by `os._exit`, so nothing of the agent's is finished twice; a child that dies without a word is a
run of unknown end, and is said to be over: its record, if there is one, says the rest.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict

from localpuppet.agent import Fate, Order, RunEnd

_MAX_WORD = 64 * 1024
_REPORT = 3


class ForkRunner:
    """Does runs in children.

    Args:
        work: Does one run, in the child, and returns how it went.
    """

    def __init__(self, work: Callable[[Order], RunEnd]) -> None:
        self._work = work
        self._pid = 0
        gc.collect()
        gc.freeze()  # what is here now stays shared with the children

    async def run(self, order: Order) -> RunEnd:
        """Do a run; see `agent.Runner`."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            _child(self._work, order, writer)
        os.close(writer)
        self._pid = pid
        try:
            await _ended(pid)
            said = os.read(reader, _MAX_WORD)
        finally:
            os.close(reader)
            self._pid = 0
        _, status = os.waitpid(pid, 0)
        return _understand(said, os.waitstatus_to_exitcode(status))

    def end(self) -> None:
        """Ask the run that is on to end."""
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)


async def _ended(pid: int) -> None:
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


def _child(work: Callable[[Order], RunEnd], order: Order, writer: int) -> None:
    """Do the run and never return."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if writer != _REPORT:
            os.dup2(writer, _REPORT, inheritable=False)
        os.closerange(_REPORT + 1, os.sysconf("SC_OPEN_MAX"))
        end = work(order)
        os.write(_REPORT, json.dumps(asdict(end)).encode()[:_MAX_WORD])
        code = 0
    except BaseException as error:  # noqa: BLE001 - the child must not become a second agent
        os.write(2, f"localpuppet: bug in a run: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _understand(said: bytes, code: int) -> RunEnd:
    try:
        raw = json.loads(said)
        return RunEnd(**{**raw, "fate": Fate(raw["fate"])})
    except (ValueError, KeyError, TypeError):
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return RunEnd(fate=Fate.OVER, outcome="interrupted", reason=f"its supervisor died ({how})")


class CommandRunner:
    """Runs a site's own command (`run_cmd`), such as `puppet agent --test`.

    Args:
        command: Its words.
        env: Its environment.
    """

    def __init__(self, command: tuple[str, ...], env: dict[str, str]) -> None:
        self._command = command
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, order: Order) -> RunEnd:
        """Do a run; see `agent.Runner`. Only its exit code is known of it."""
        env = {**self._env, "LOCALPUPPET_CAUSE": order.text[:1000]}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, env=env, start_new_session=True
            )
        except OSError as error:
            return RunEnd(
                fate=Fate.IMPOSSIBLE, reason=f"{self._command[0]}: {error.strerror or error}"
            )
        try:
            code = await self._process.wait()
        finally:
            self._process = None
        return RunEnd(
            fate=Fate.OVER, outcome="ended" if code == 0 else "failed", reason=f"exit code {code}"
        )

    def end(self) -> None:
        """Ask the command that runs to end."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGTERM)
