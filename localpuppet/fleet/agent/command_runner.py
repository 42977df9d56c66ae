"""The `Runner` that starts a site's own command in place of `localpuppet apply`."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

from localpuppet.base.machine.files import make_private
from localpuppet.base.machine.flock import Flock
from localpuppet.fleet.agent.fork_runner import ended, not_started
from localpuppet.fleet.agent.runner import Fate, Order, RunEnd


class CommandRunner:
    """Runs a site's own command (`run_cmd`), such as `puppet agent --test`.

    Args:
        command: Its words.
        env: Its environment.
        lock: A file; the command inherits a lock on it.
        timeout: Seconds until it is ended.
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

    async def run(self, order: Order) -> RunEnd:
        """Do a run; see `fleet.agent.runner.Runner`. Only its exit code is known of it."""
        make_private(self._lock.parent)
        lock = Flock.take(self._lock)
        if lock is None:
            return RunEnd(fate=Fate.BUSY, reason="the command of an earlier agent goes on")
        try:
            # Not asyncio's: that kills what runs when the agent ends with an error.
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
        lock.release()  # not when we are cancelled: the command goes on, and has it
        if not in_time:
            reason = f"did not end within {self._timeout:g} s"
            return RunEnd(fate=Fate.OVER, outcome="timed_out", reason=reason)
        return RunEnd(
            fate=Fate.OVER, outcome="ended" if code == 0 else "failed", reason=f"exit code {code}"
        )

    async def _over(self, pid: int) -> bool:
        """Wait for the end of a command, and see to it; return whether it came in time."""
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
        """Ask the command that runs to end."""
        if self._pid:
            _signal_group(self._pid, signal.SIGTERM)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
