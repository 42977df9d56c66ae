"""The `Runner` that starts a command of the site instead of `localpuppet apply`."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

from localpuppet.base.machine.files import make_private
from localpuppet.base.machine.flock import Flock
from localpuppet.fleet.agent.fork_runner import ended, not_started
from localpuppet.fleet.agent.runner import RequestedRunResult, RunCompletion, RunOrder


class CommandRunner:
    """Runs a command of the site (`run_cmd`), such as `puppet agent --test`.

    Args:
        command: The argument vector.
        env: The environment of the command.
        lock: A lock file; the command inherits the lock.
        timeout: Seconds until the command gets TERM.
        grace: Seconds between TERM and KILL.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        env: dict[str, str],
        *,
        lock: Path,
        timeout: float,
        grace: float,
    ) -> None:
        self._command = command
        self._env = env
        self._lock = lock
        self._timeout = timeout
        self._grace = grace
        self._pid = 0

    async def run(self, order: RunOrder) -> RunCompletion:
        """Execute a run; see `fleet.agent.runner.Runner`. The exit code is the only result."""
        make_private(self._lock.parent)
        lock = Flock.take(self._lock)
        if lock is None:
            return RunCompletion(
                result=RequestedRunResult.BUSY,
                reason="the command of an earlier agent is still running",
            )
        try:
            # Not asyncio's subprocess: it kills the command if the agent ends with an error.
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                env={**self._env, "LOCALPUPPET_CAUSE": order.text[:1000]},
                start_new_session=True,
                pass_fds=(lock.fd,),
            )
        except OSError as error:
            lock.release()
            return not_started(error, self._command[0])
        self._pid = process.pid
        try:
            in_time = await self._over(process.pid)
        finally:
            self._pid = 0
        code = process.wait()
        lock.release()  # not on cancellation: the command keeps running and has the lock
        if not in_time:
            reason = f"did not end within {self._timeout:g} s"
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
                (self._timeout, signal.SIGTERM),
                (self._grace, signal.SIGKILL),
            ):
                done, _ = await asyncio.wait([over], timeout=patience)
                if done:
                    return number is signal.SIGTERM
                _signal_group(pid, number)
            await over
            return False
        finally:
            over.cancel()

    def end(self) -> None:
        """Send TERM to the running command."""
        if self._pid:
            _signal_group(self._pid, signal.SIGTERM)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
