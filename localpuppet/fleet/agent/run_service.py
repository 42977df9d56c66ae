"""The services of an agent: its run side with timer and signals, and its network side.

    step(now) -> request a run when one is due, and return how long to sleep

- A node runs at its own second of each period. If the clock is set back, the node waits for at most
  one period.
- Leases, timer and Puppet's socket run beside the agent's loop.
"""

import asyncio
import math
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock, Log, ProcessId
from localpuppet.base.machine.service_manager import ServiceManager
from localpuppet.base.machine.unix_socket import ask, listen, listen_to
from localpuppet.base.machine.waiting import wait_first
from localpuppet.fleet.agent.agent import LONGEST_SLEEP, Agent, Runner
from localpuppet.fleet.agent.bus_session import BusSession, lend_store
from localpuppet.fleet.agent.code_calls import PuppetCalls
from localpuppet.fleet.agent.split import RemoteRunSide, Spool, VerifierOf
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.proxy import relayed
from localpuppet.fleet.fleet_settings import FleetSettings
from localpuppet.fleet.inventory.presence import splay
from localpuppet.fleet.leases.keeper import Keeper
from localpuppet.fleet.triggers.cause import CauseKind

# The longest sleep in seconds, to notice a changed clock.
LONGEST = 60.0


class Timer:
    """Requests a run once a period, at the same second (`phase`) of each; see `presence.splay`."""

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
    """The modification times below the state directory that a run or a hold changes."""

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


@dataclass(slots=True, kw_only=True, eq=False)
class RunService:
    """The run side.

    Attributes:
        run_interval: Seconds between periodic runs; `None` for no periodic runs.
        now: Whether a signal also ends the run in progress.
    """

    agent: Agent
    runner: Runner
    keeper: Keeper
    around: Sequence[Task]
    calls: PuppetCalls
    identify: Callable[[int], ProcessId]
    socket: Path
    state: Path
    lock: Flock
    manager: ServiceManager
    clock: Clock
    log: Log
    run_interval: float | None
    signer: str
    now: bool
    _stop: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _leave: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def serve(self, *tasks: Task, to: str) -> None:
        """Serve until a signal ends the service.

        Args:
            tasks: Further tasks; each gets the event that ends it.
            to: How other nodes reach this node, for the log.
        """
        agent = self.agent
        server = await listen(self.socket, self._answer)
        self.keeper.resume()  # from here on, this process is the only agent of the node
        self._on_signals()
        self.log.info(f"{agent.me} {to}, {self._rhythm()}")
        if self.signer != agent.me:
            self.log.warning(
                f"it signs as {self.signer}: other nodes reject its status of {agent.me}"
            )
        self.manager.ready(f"{agent.me}: waiting for triggers")
        try:
            async with asyncio.TaskGroup() as group:
                for task in (*tasks, *self.around):
                    group.create_task(task(self._leave))
                idle = asyncio.Event()
                keeping = group.create_task(self.keeper.keep(idle))
                traces = RunTraces(self.state)
                others = [group.create_task(notice(traces, agent.subscribe(), agent.recheck))]
                if self.run_interval is not None:
                    others.append(
                        group.create_task(_tick(self._timer(self.run_interval), self.clock))
                    )
                await agent.work(
                    self._stop,
                    alive=self.manager.alive,
                    pulse=min(self.manager.pulse, LONGEST_SLEEP),
                )
                self.manager.stopping()
                idle.set()
                await keeping  # releases the leases while the bus is reachable
                self._leave.set()
                for other in others:
                    other.cancel()
        finally:
            server.close()
            with suppress(FileNotFoundError):
                self.socket.unlink()
            self.lock.release()
        self.log.info("ended")

    async def _answer(self, line: bytes, pid: int) -> bytes:
        return await self.calls.answer(line, self.identify(pid))

    def _timer(self, every: float) -> Timer:
        agent = self.agent

        def due() -> None:
            agent.request_run(CauseKind.TIMER, good_for=every)

        now = self.clock.now().timestamp()
        return Timer(every, phase=splay(agent.me, every), now=now, due=due)

    def _on_signals(self) -> None:
        def end() -> None:
            if self.now or self._stop.is_set():
                self.log.info("ending the active run")
                self.runner.end()
            else:
                self.log.info("ending after the active run")
            self._stop.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)

    def _rhythm(self) -> str:
        interval = self.run_interval
        return "no periodic run" if interval is None else f"a run every {show_duration(interval)}"


async def _tick(timer: Timer, clock: Clock) -> None:
    while True:
        await asyncio.sleep(timer.step(clock.now().timestamp()))


# Seconds between attempts of the network side to reach the run side.
HELLO_AGAIN = 1.0
# Seconds for the run side to answer: an fsync on a busy disk.
PATIENCE = 15.0
# Upper limit, in seconds, between two watchdog notifications of the network side.
LONGEST_BEAT = 10.0


class NetworkSide:
    """The side of the agent that talks to the bus, and that has no rights on this machine."""

    def __init__(
        self,
        settings: FleetSettings,
        *,
        connect: Callable[[NodeName, str | None], Awaitable[KeyValue]],
        verifier: VerifierOf,
        log: Log,
    ) -> None:
        self._settings = settings
        self._sides = settings.agent.network
        self._connect = connect
        self._log = log
        self._leave = asyncio.Event()
        self._manager = ServiceManager.from_environment()
        self._spool = Spool(self._sides.spool)
        self._gate = RemoteRunSide(self._ask, verifier=verifier, spool=self._spool, log=log)

    async def serve(self) -> None:
        """Serve the network side until a signal ends it.

        Raises:
            InvalidInputError: The process runs as root, or a file is refused.
            BusyError: Another network side is running.
            StateError: The user of this process may not write its directory.
        """
        if os.geteuid() == 0:
            raise InvalidInputError(
                "the network side must not run as root",
                where="agent",
                hint=f"start it as {self._sides.user}: localpuppet-agent-net.service does",
            )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave.set)
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._beat())]
            if await self._run_side():
                others.append(group.create_task(self._gate.follow()))
                await self._on_the_bus()
            self._manager.stopping()
            for other in others:
                other.cancel()
        self._log.info("ended")

    async def _on_the_bus(self) -> None:
        engine, keyprefix = self._settings.bus.engine, self._settings.agent.keyprefix
        connect = partial(self._connect, self._gate.me)
        session = BusSession(
            self._gate, connect=self._connect_again, log=self._log, keyprefix=keyprefix
        )
        relay = partial(relayed, partial(lend_store, session, own=engine, connect=connect))
        server = await listen_to(self._sides.relay, relay, users=())
        self._spool.empty()  # no other network side is running now
        self._log.info(f"network side of {self._gate.me} on {engine}")
        self._manager.ready(f"{self._gate.me}: on the bus")
        try:
            await session.run(self._leave)
        finally:
            server.close()
            self._sides.relay.unlink(missing_ok=True)

    async def _connect_again(self) -> KeyValue:
        """Connect to the bus, after the run side, possibly a new process, has answered."""
        await self._gate.hello()
        return await self._connect(self._gate.me, None)

    async def _run_side(self) -> bool:
        """Wait for the run side; return whether it answered before a signal to leave."""
        warned = False
        while not self._leave.is_set():
            try:
                await self._gate.hello()
            except UnavailableError as error:
                if not warned:
                    self._log.warning(f"waiting for the run side: {error}")
                warned = True
            else:
                return True
            await wait_first(self._leave, seconds=HELLO_AGAIN)
        return False

    async def _beat(self) -> None:
        """Notify systemd's watchdog from the event loop that does all the work."""
        while True:
            self._manager.alive()
            await asyncio.sleep(min(self._manager.pulse, LONGEST_BEAT))

    def _ask(self, line: bytes) -> AsyncGenerator[bytes, None]:
        return ask(self._sides.socket, line, patience=PATIENCE)
