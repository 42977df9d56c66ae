"""The parts of an agent's run side: signals, the timer, and runs that the agent did not start.

    step(now) -> request a run when one is due, and return how long to sleep

- A node runs at its own second of each period. If the clock is set back, the node waits for at most
  one period.
- Leases, timer and Puppet's socket run beside the agent's loop.
"""

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path

from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock, Log, ProcessId, ServiceStatus
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.agent.agent import LONGEST_SLEEP, Agent, Runner
from localpuppet.fleet.agent.puppet_calls import PuppetCalls
from localpuppet.fleet.agent.run_side import LocalRunSide
from localpuppet.fleet.inventory.node_row import splay
from localpuppet.fleet.leases.keeper import Keeper
from localpuppet.fleet.triggers.cause import CauseKind

# The longest sleep in seconds, to notice a changed clock.
LONGEST = 60.0


class Timer:
    """Requests a run once a period.

    Args:
        every: The period in seconds.
        phase: The second of each period; see `inventory.node_row.splay`.
        now: The start time in seconds since 1970.
        due: Called when a run is due.
    """

    def __init__(self, every: float, *, phase: float, now: float, due: Callable[[], None]) -> None:
        self._every = every
        self._phase = phase
        self._call = due
        self._due = self._next(now)

    def step(self, now: float) -> float:
        """Request a run when one is due; return how many seconds to sleep."""
        if now >= self._due:
            self._call()
        if now >= self._due or self._due - now > self._every:  # or the clock was set back
            self._due = self._next(now)
        return min(self._due - now, LONGEST)

    def _next(self, now: float) -> float:
        """Return the first second after `now` at which a period of this node begins."""
        return (math.floor((now - self._phase) / self._every) + 1) * self._every + self._phase


# Seconds between two checks.
LOOK = 5.0


class RunTraces:
    """The modification times below the state directory that a run or a hold changes.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._paths = (state / "lock", state / "runs", state / "holds")
        self._seen = self._look()

    def changed(self) -> bool:
        """Return whether something has changed since the last call."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> list[int]:
        times = []
        for path in self._paths:
            try:
                times.append(path.stat().st_mtime_ns)
            except FileNotFoundError:
                times.append(0)
        return times


async def notice(traces: RunTraces, changed: asyncio.Event, notify: Callable[[], None]) -> None:
    """Call `notify` when `traces` change; check at once when `changed` is set."""
    while True:
        await wait_first(changed, seconds=LOOK)
        changed.clear()
        if traces.changed():
            notify()


# A task beside the run side; it gets the event that ends it.
Task = Callable[[asyncio.Event], Coroutine[None, None, None]]
# Answers one line of a process on this machine.
LineAnswer = Callable[[bytes, int], Awaitable[bytes]]


class RunParts(Value):
    """The parts of the run side.

    Attributes:
        agent: Decides on runs.
        runner: Executes runs.
        side: Serves the network side.
        keeper: Keeps leases.
        around: Tasks that need no bus.
        calls: Answers Puppet code on this machine.
        listen: Listens on a socket and answers each line.
        identify: Returns the process with a pid.
        socket: The socket for Puppet code.
        state: The state directory.
        lock: Prevents a second agent of this node.
        manager: The service manager, which gets status reports.
        clock: The clock.
        log: The agent's log.
        run_interval: Seconds between periodic runs; `None` for no periodic runs.
        signer: The name that the node signs with.
    """

    agent: Agent
    runner: Runner
    side: LocalRunSide
    keeper: Keeper
    around: Sequence[Task]
    calls: PuppetCalls
    listen: Callable[[Path, LineAnswer], Awaitable[asyncio.Server]]
    identify: Callable[[int], ProcessId]
    socket: Path
    state: Path
    lock: Flock
    manager: ServiceStatus
    clock: Clock
    log: Log
    run_interval: float | None
    signer: str


class RunService:
    """The run side.

    Args:
        parts: Its parts.
        now: Whether a signal also ends the run in progress.
    """

    def __init__(self, parts: RunParts, *, now: bool) -> None:
        self.parts = parts
        self._now = now
        self._stop = asyncio.Event()
        self._leave = asyncio.Event()

    async def serve(self, *tasks: Task, to: str) -> None:
        """Serve until a signal ends the service.

        Args:
            tasks: Further tasks; each gets the event that ends it.
            to: How other nodes reach this node, for the log.

        Raises:
            BusyError: Another agent is running.
        """
        parts, agent = self.parts, self.parts.agent
        server = await parts.listen(parts.socket, self._answer)
        parts.keeper.resume()  # from here on, this process is the only agent of the node
        self._on_signals()
        parts.log.info(f"{agent.me} {to}, {self._rhythm()}")
        if parts.signer != agent.me:
            parts.log.warning(
                f"it signs as {parts.signer}: other nodes reject its status of {agent.me}"
            )
        parts.manager.ready(f"{agent.me}: waiting for triggers")
        try:
            async with asyncio.TaskGroup() as group:
                for task in (*tasks, *parts.around):
                    group.create_task(task(self._leave))
                idle = asyncio.Event()
                keeping = group.create_task(parts.keeper.keep(idle))
                traces = RunTraces(parts.state)
                others = [group.create_task(notice(traces, agent.subscribe(), agent.recheck))]
                if parts.run_interval is not None:
                    others.append(
                        group.create_task(_tick(self._timer(parts.run_interval), parts.clock))
                    )
                await agent.work(
                    self._stop,
                    alive=parts.manager.alive,
                    pulse=min(parts.manager.pulse, LONGEST_SLEEP),
                )
                parts.manager.stopping()
                idle.set()
                await keeping  # releases the leases while the bus is reachable
                self._leave.set()
                for other in others:
                    other.cancel()
        finally:
            server.close()
            with suppress(FileNotFoundError):
                parts.socket.unlink()
            parts.lock.release()
        parts.log.info("ended")

    async def _answer(self, line: bytes, pid: int) -> bytes:
        return await self.parts.calls.answer(line, self.parts.identify(pid))

    def _timer(self, every: float) -> Timer:
        agent = self.parts.agent

        def due() -> None:
            agent.request_run(CauseKind.TIMER, good_for=every)

        now = self.parts.clock.now().timestamp()
        return Timer(every, phase=splay(agent.me, every), now=now, due=due)

    def _on_signals(self) -> None:
        def end() -> None:
            if self._now or self._stop.is_set():
                self.parts.log.info("ending the active run")
                self.parts.runner.end()
            else:
                self.parts.log.info("ending after the active run")
            self._stop.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)

    def _rhythm(self) -> str:
        interval = self.parts.run_interval
        return "no periodic run" if interval is None else f"a run every {show_duration(interval)}"


async def _tick(timer: Timer, clock: Clock) -> None:
    while True:
        await asyncio.sleep(timer.step(clock.now().timestamp()))
