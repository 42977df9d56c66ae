"""The `Runner` that starts a command of the site instead of `localpuppet apply`."""

import asyncio
import signal
import subprocess
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from localpuppet.base.machine.child import signal_group
from localpuppet.base.machine.files import make_private
from localpuppet.base.machine.flock import Flock
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion, RunOrder
from localpuppet.fleet.agent.fork_runner import ended, not_started


@dataclass(slots=True, eq=False)
class CommandRunner:
    """Runs a command of the site (`run_cmd`), such as `puppet agent --test`.

    Attributes:
        command: The argument vector.
        env: The environment of the command.
        lock: A lock file; the command inherits the lock.
        timeout: Seconds until the command gets TERM.
        grace: Seconds between TERM and KILL.
    """

    command: tuple[str, ...]
    env: dict[str, str]
    _: KW_ONLY
    lock: Path
    timeout: float
    grace: float
    _pid: int = field(default=0, init=False)

    async def run(self, order: RunOrder) -> RunCompletion:
        """Execute a run; see `fleet.agent.agent.Runner`. The exit code is the only result."""
        make_private(self.lock.parent)
        lock = Flock.take(self.lock)
        if lock is None:
            return RunCompletion(
                result=RequestedRunResult.BUSY,
                reason="the command of an earlier agent is still running",
            )
        try:
            # Not asyncio's subprocess: it kills the command if the agent ends with an error.
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                env={**self.env, "LOCALPUPPET_CAUSE": order.text[:1000]},
                start_new_session=True,
                pass_fds=(lock.fd,),
            )
        except OSError as error:
            lock.release()
            return not_started(error, self.command[0])
        self._pid = process.pid
        try:
            in_time = await self._over(process.pid)
        finally:
            self._pid = 0
        code = process.wait()
        lock.release()  # not on cancellation: the command keeps running and has the lock
        if not in_time:
            reason = f"did not end within {self.timeout:g} s"
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
                (self.timeout, signal.SIGTERM),
                (self.grace, signal.SIGKILL),
            ):
                done, _ = await asyncio.wait([over], timeout=patience)
                if done:
                    return number is signal.SIGTERM
                signal_group(pid, number)
            await over
            return False
        finally:
            over.cancel()

    def end(self) -> None:
        """Send TERM to the running command."""
        if self._pid:
            signal_group(self._pid, signal.SIGTERM)
