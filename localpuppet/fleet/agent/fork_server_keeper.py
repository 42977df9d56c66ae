"""Keep a fork server running beside the agent, and restart it when it has ended.

- The server starts while no run is in progress, so that its start does not slow a run down.
- It ends itself with its own exit code when it is outdated, for example after a run with changes
  (see `share/fork_server.rb`). After any other end, the next start waits for a pause that doubles.
- Without a server, runs start Puppet cold.
"""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.machine.ports import Log, ProcessId
from localpuppet.base.machine.waiting import wait_first
from localpuppet.fleet.agent.fork_runner import ended

# The exit code of a server that is to be replaced.
RECYCLED = 10
# Seconds until the next start after a failure: the first pause, and the longest.
FIRST = 1.0
LONGEST = 300.0
# Seconds that the server may take to end when the agent ends.
PATIENCE = 10.0


class StartedForkServer(Protocol):
    """A running fork server: `base.machine.kept_process.KeptProcess`."""

    @property
    def identity(self) -> ProcessId:
        """Return the process identity."""

    def end(self) -> None:
        """End the server; without a running server, do nothing."""

    def code(self) -> int:
        """Return the exit code after the end; the number of a signal is negative."""


class RunActivity(Protocol):
    """Returns whether a run is in progress: `fleet.agent.agent.Agent`."""

    @property
    def running(self) -> object:
        """Return the run in progress; a false value without one."""

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on each change; the subscriber clears it."""


@dataclass(frozen=True, slots=True)
class ForkServerKeeper:
    """Keeps a fork server running.

    Attributes:
        runs: Returns whether a run is in progress.
        start: Starts a server.
        log: The agent's log.
        first: The first pause in seconds after a failed start.
    """

    runs: RunActivity
    _: KW_ONLY
    start: Callable[[], StartedForkServer]
    log: Log
    first: float = FIRST

    async def keep(self, leave: asyncio.Event) -> None:
        """Keep a server running until `leave` is set, and end it then."""
        changed = self.runs.subscribe()
        pause = self.first
        while not leave.is_set():
            while self.runs.running and not leave.is_set():
                changed.clear()
                await wait_first(leave, changed)
            if leave.is_set():
                return
            problem = await self._serve(leave)
            if problem is None:
                pause = self.first
            elif not leave.is_set():
                self.log.warning(f"{problem}; runs start cold until it is running again")
                await wait_first(leave, seconds=pause)
                pause = min(2 * pause, LONGEST)

    async def _serve(self, leave: asyncio.Event) -> str | None:
        """Run a server until it ends or `leave` is set; return the error, if any."""
        try:
            server = self.start()
        except LocalpuppetError as error:
            return f"the fork server: {error}"
        over = asyncio.create_task(ended(server.identity.pid))
        try:
            await wait_first(leave, over)
            if not over.done():
                server.end()
                await asyncio.wait([over], timeout=PATIENCE)
            code = server.code() if over.done() else RECYCLED
        finally:
            over.cancel()
        if code == RECYCLED or leave.is_set():
            return None
        return f"the fork server ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
