"""The run side of an agent, put together: inbox, timer, runs, leases, Puppet's socket."""

import asyncio
import math
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path

from localpuppet.agent.agent import LONGEST_SLEEP, Agent
from localpuppet.agent.command_runner import CommandRunner
from localpuppet.agent.fork_runner import ForkRunner
from localpuppet.agent.lock_users import Askers
from localpuppet.agent.log import AgentLog
from localpuppet.agent.puppet_calls import Calls
from localpuppet.agent.run_side import Here
from localpuppet.agent.runner import Runner
from localpuppet.agent.status import Describer
from localpuppet.agent.timer import splay
from localpuppet.bus.key_value import KeyValue
from localpuppet.errors import BusyError
from localpuppet.formats.names import NodeName
from localpuppet.formats.times import show_duration
from localpuppet.leases.book import LeaseBook
from localpuppet.leases.keeper import Keeper
from localpuppet.machine.files import make_private
from localpuppet.machine.flock import Flock
from localpuppet.machine.service_manager import ServiceManager
from localpuppet.machine.unix_socket import listen
from localpuppet.requests.handler import Actions, Desk
from localpuppet.runs.holds import Holds
from localpuppet.triggers.cause import Kind
from localpuppet.triggers.inbox import Inbox
from localpuppet.triggers.sending import paths_of
from localpuppet.wiring.agent_child import do, warm
from localpuppet.wiring.fleet import FleetParts
from localpuppet.wiring.puppet_environment import telling

# How often it is looked whether others have run Puppet here.
LOOK = 5.0
# The timer looks at the clock so often, in case somebody has set it.
LONGEST = 60.0

Task = Callable[[asyncio.Event], Awaitable[None]]


class Work:
    """The run side.

    Args:
        fleet: The wiring.
        log: What it says.
        now: Whether a signal ends also the run that is on.
        lend: Lends the store of an engine, connected; that of the site for `None`.
        store: Returns the store of the site, connected.

    Raises:
        BusyError: Another agent has this node's state, whatever sockets it has: two would each
            run for what one of them has accepted.
        StateError: The disk refused.
    """

    def __init__(
        self,
        fleet: FleetParts,
        log: AgentLog,
        *,
        now: bool,
        lend: Callable[[str | None], AbstractAsyncContextManager[KeyValue]],
        store: Callable[[], Awaitable[KeyValue]],
    ) -> None:
        self._fleet = fleet
        self._parts = fleet.parts
        self._log = log
        self._now = now
        self._lend = lend
        self._store = store
        self._known_holds: Holds | None = None
        _ = fleet.signer  # makes the key where there is none: what verifies must know it, too
        self._flock = _only_one(fleet.parts.settings.state / "agent" / "lock")
        self._stop = asyncio.Event()
        self._leave = asyncio.Event()
        self._manager = ServiceManager.from_environment()
        self._runner = self._make_runner()
        self._agent = self._make_agent()
        describer = Describer(fleet, self._agent, self._holds)
        self.side = Here(self._agent, serve=self._desk(describer).serve, describe=describer.signed)

    async def go(self, *tasks: Task, to: str) -> None:
        """Be the run side until a signal ends it.

        Args:
            tasks: What else goes on beside it: each gets the event that ends it.
            to: How others reach us, for the log.

        Raises:
            BusyError: Another agent is there.
            StateError: The disk refused.
        """
        agent, keeper = self._agent, self._keeper()
        calls = Calls(
            store=self._lend,
            signer=self._fleet.signer,
            keeper=keeper,
            paths=self._paths,
            clock=self._parts.clock,
        )
        socket = self._parts.settings.socket

        async def answer(line: bytes, pid: int) -> bytes:
            return await calls.answer(line, self._parts.processes.identify(pid))

        server = await listen(socket, answer)
        keeper.resume()  # nobody else can be this node's agent from here on
        self._on_signals()
        self._log.info(f"{agent.me} {to}, {self._rhythm()}")
        name = str(self._fleet.signer.name)
        if name != agent.me:
            self._log.warning(f"it signs as {name}: nobody believes what it says of {agent.me}")
        self._manager.ready(f"{agent.me}: waiting for triggers")
        try:
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(_run(task, self._leave))
                idle = asyncio.Event()
                keeping = group.create_task(keeper.keep(idle))
                ticking = group.create_task(self._tick())
                noticing = group.create_task(self._notice())
                await agent.work(self._stop)
                self._manager.stopping()
                idle.set()
                await keeping  # gives back what it has, while the bus is there
                self._leave.set()
                ticking.cancel()
                noticing.cancel()
        finally:
            server.close()
            with suppress(FileNotFoundError):
                socket.unlink()
            self._flock.release()
        self._log.info("ended")

    def _make_runner(self) -> Runner:
        command = self._fleet.settings.agent.run_cmd
        if command is not None:
            settings = self._parts.settings
            return CommandRunner(
                command,
                {**self._parts.environment, **telling(settings)},
                lock=settings.state / "agent" / "run_cmd.lock",
                timeout=settings.run_timeout,
                grace=settings.grace,
            )
        warm(self._parts)
        return ForkRunner(partial(do, str(self._parts.settings.root)))

    def _make_agent(self) -> Agent:
        parts = self._parts

        def held() -> str | None:
            active = self._holds().active()
            return str(active[0]) if active else None

        return Agent(
            me=self._fleet.node,
            may=self._fleet.may,
            verifier=self._fleet.verifier,
            inbox=Inbox(parts.settings.state / "agent" / "inbox.sqlite", parts.clock),
            runner=self._runner,
            held=held,
            clock=parts.clock,
            log=self._log,
            alive=self._manager.alive,
            pulse=min(self._manager.pulse, LONGEST_SLEEP),
        )

    def _holds(self) -> Holds:
        """Return the holds; `puppet agent --disable` counts as soon as Puppet is known."""
        if self._known_holds is None or not self._known_holds.with_puppets:
            self._known_holds = self._parts.holds(ask=False)
        return self._known_holds

    def _keeper(self) -> Keeper:
        parts = self._parts
        askers = Askers(parts.records, parts.processes, self._log, grace=parts.settings.grace)
        return Keeper(
            self._store,
            parts.clock,
            self._log,
            holder=self._agent.me,
            session=str(uuid.uuid4()),
            book=LeaseBook(
                parts.settings.state / "agent" / "leases.sqlite",
                boot_id=parts.processes.me().boot_id,
            ),
            relies=askers.go_on,
            lost=askers.end,
        )

    def _desk(self, describer: Describer) -> Desk:
        def run(caller: str, noop: bool, only: Sequence[str]) -> str | None:
            return self._agent.want(Kind.REQUEST, sender=caller, noop=noop, only=only)

        return Desk(
            reception=self._fleet.identity.reception(),
            signer=self._fleet.signer,
            holds=self._holds,
            actions=Actions(
                status=describer.status,
                last_run=describer.last_run,
                run=run,
                changed=self._agent.poke,
            ),
            clock=self._parts.clock,
            log=self._log,
        )

    def _paths(self, run: str | None) -> Iterable[tuple[NodeName, ...]]:
        """Return along which paths Puppet code may send on.

        Without a run's id it is taken for the run that is on: a `run_cmd` may have lost its
        environment on the way, and must not begin a new chain each time.
        """
        return self._agent.paths() if run is None else paths_of(self._parts.records, run)

    def _on_signals(self) -> None:
        def end() -> None:
            if self._now or self._stop.is_set():
                self._log.info("ending the run that is on")
                self._runner.end()
            else:
                self._log.info("ending; a run that is on may finish")
            self._stop.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)

    async def _notice(self) -> None:
        """Notice runs and holds that are not ours."""
        changed = self._agent.subscribe()
        seen = self._traces()
        while True:
            # Not wait_for: up to Python 3.11 it forgets a cancellation when what it waits for
            # comes at the same time, and the agent would never end.
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await changed.wait()
            changed.clear()
            if seen != self._traces():
                seen = self._traces()
                self._agent.poke()

    def _traces(self) -> list[int]:
        """Return what changes when anybody on this node has run Puppet, or holds it."""
        state = self._parts.settings.state
        found = []
        for path in (state / "lock", state / "runs", state / "holds"):
            try:
                found.append(path.stat().st_mtime_ns)
            except FileNotFoundError:
                found.append(0)
        return found

    async def _tick(self) -> None:
        """Ask for the periodic run: at this node's own second of each period."""
        every = self._fleet.settings.agent.every
        if every is None:
            return
        phase = splay(self._agent.me, every)
        clock = self._parts.clock
        due = _next(clock.now().timestamp(), every, phase)
        while True:
            now = clock.now().timestamp()
            if now >= due:
                self._agent.want(Kind.TIMER, good_for=every)
            if now >= due or due - now > every:  # or somebody set the clock back
                due = _next(now, every, phase)
            await asyncio.sleep(min(due - now, LONGEST))

    def _rhythm(self) -> str:
        every = self._fleet.settings.agent.every
        return "no periodic run" if every is None else f"a run every {show_duration(every)}"


def _only_one(path: Path) -> Flock:
    make_private(path.parent)
    flock = Flock.take(path)
    if flock is None:
        raise BusyError("another agent of this node is running", where=str(path))
    return flock


async def _run(task: Task, leave: asyncio.Event) -> None:
    await task(leave)


def _next(now: float, every: float, phase: float) -> float:
    """Return the first second after `now` at which a period of this node begins."""
    return (math.floor((now - phase) / every) + 1) * every + phase
