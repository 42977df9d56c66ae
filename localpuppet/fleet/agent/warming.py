"""The fork server's life beside the agent: it is started, and started again when it has ended.

Owns: when. It is started while no run is on, so that no run shares the machine with its start; it
ends by itself when it should not go on (after a run that changed something, say: see
`share/fork_server.rb`), with an exit code of its own. Where it ends otherwise, it is tried again
after a pause that doubles. Invariant: whatever becomes of it, runs go on, cold.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.machine.ports import Log, ProcessId
from localpuppet.fleet.agent.fork_runner import ended

# The exit code of a server whose place another one is to take.
RECYCLED = 10
# Seconds until it is tried again after it could not be had: the first time, and at the most.
FIRST = 1.0
LONGEST = 300.0
# Seconds that it may take to end when we do.
PATIENCE = 10.0


class Server(Protocol):
    """A fork server that was started: `base.machine.kept_process.KeptProcess`."""

    @property
    def identity(self) -> ProcessId:
        """Return who it is."""
        ...

    def end(self) -> None:
        """Ask it to end; none is fine."""
        ...

    def code(self) -> int:
        """Return its exit code, once it has ended; the number of a signal is negative."""
        ...


class Runs(Protocol):
    """Tells whether a run is on: `fleet.agent.agent.Agent`."""

    @property
    def running(self) -> object:
        """Return what runs; nothing where nothing does."""
        ...

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set whenever something changed; whoever waits clears it."""
        ...


class Warming:
    """Keeps a fork server.

    Args:
        runs: Tells whether a run is on.
        start: Starts a server.
        log: What the agent says.
        first: Seconds until it is tried again for the first time.
    """

    def __init__(
        self,
        runs: Runs,
        *,
        start: Callable[[], Server],
        log: Log,
        first: float = FIRST,
    ) -> None:
        self._runs = runs
        self._start = start
        self._log = log
        self._first = first

    async def keep(self, leave: asyncio.Event) -> None:
        """Keep a server until `leave` is set, and end it then."""
        leaving = asyncio.create_task(leave.wait())
        changed = self._runs.subscribe()
        pause = self._first
        try:
            while not leaving.done():
                await self._idle(changed, leaving)
                if leaving.done():
                    return
                problem = await self._serve(leaving)
                if problem is None:
                    pause = self._first
                elif not leaving.done():
                    self._log.warning(f"{problem}; runs start cold until it is there again")
                    await asyncio.wait([leaving], timeout=pause)
                    pause = min(2 * pause, LONGEST)
        finally:
            leaving.cancel()

    async def _idle(self, changed: asyncio.Event, leaving: "asyncio.Task[bool]") -> None:
        """Wait until no run is on."""
        while self._runs.running and not leaving.done():
            changed.clear()
            change = asyncio.create_task(changed.wait())
            await asyncio.wait([leaving, change], return_when=asyncio.FIRST_COMPLETED)
            change.cancel()

    async def _serve(self, leaving: "asyncio.Task[bool]") -> str | None:
        """Have a server until it ends, or we leave; return what went wrong, if something did."""
        try:
            server = self._start()
        except LocalpuppetError as error:
            return f"the fork server: {error}"
        over = asyncio.create_task(ended(server.identity.pid))
        try:
            await asyncio.wait([leaving, over], return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                server.end()
                await asyncio.wait([over], timeout=PATIENCE)
            code = server.code() if over.done() else RECYCLED
        finally:
            over.cancel()
        if code == RECYCLED or leaving.done():
            return None
        return f"the fork server ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
