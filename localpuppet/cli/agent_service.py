"""All parts of the agent, put together, started and ended in order."""

import asyncio
import math
import signal
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from localpuppet.adapters.fork_runner import CommandRunner, ForkRunner
from localpuppet.adapters.local_socket import listen
from localpuppet.adapters.service_manager import ServiceManager
from localpuppet.agent import Agent, Runner
from localpuppet.calls import Calls
from localpuppet.cli.agent_log import AgentLog
from localpuppet.cli.agent_run import do, warm
from localpuppet.cli.agent_status import Describer
from localpuppet.cli.fleet import FleetParts, paths_of
from localpuppet.cli.telling import telling
from localpuppet.desk import Actions, Desk
from localpuppet.errors import InvalidInputError
from localpuppet.inbox import Inbox
from localpuppet.keeper import Keeper
from localpuppet.key_value import KeyValue
from localpuppet.model.bus_settings import splay
from localpuppet.model.cause import Kind
from localpuppet.model.duration import show_duration
from localpuppet.model.names import NodeName
from localpuppet.model.run import State
from localpuppet.session import Session

# How often it is looked whether a run of somebody else's, which has a lock, is over.
LOOK = 5.0
# The timer looks at the clock so often, in case somebody has set it.
LONGEST = 60.0


class Service:
    """The agent.

    Args:
        fleet: The wiring.
        log: What it says.
        now: Whether a signal ends also the run that is on.
    """

    def __init__(self, fleet: FleetParts, log: AgentLog, *, now: bool) -> None:
        self._fleet = fleet
        self._parts = fleet.parts
        self._log = log
        self._now = now
        self._stop = asyncio.Event()
        self._leave = asyncio.Event()

    async def serve(self) -> None:
        """Be the agent until a signal ends it.

        Raises:
            BusyError: Another agent is there.
            StateError: The disk refused.
        """
        manager = ServiceManager.from_environment()
        runner = self._runner()
        agent = self._agent(runner, manager)
        session, keeper = self._on_the_bus(agent, runner)
        calls = Calls(
            store=partial(self._store, session),
            signer=self._fleet.signer,
            keeper=keeper,
            paths=partial(self._paths, agent),
            clock=self._parts.clock,
        )
        socket = self._parts.settings.socket
        server = await listen(socket, calls.answer)
        self._on_signals(runner)
        self._log.info(f"{agent.me} on {self._fleet.settings.bus.engine}, {self._rhythm()}")
        manager.ready(f"{agent.me}: waiting for triggers")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(session.run(self._leave))
                group.create_task(keeper.keep(self._leave))
                ticking = group.create_task(self._tick(agent))
                giving = group.create_task(self._give_back(agent, keeper))
                await agent.work(self._stop)
                manager.stopping()
                self._leave.set()
                ticking.cancel()
                giving.cancel()
        finally:
            server.close()
            with suppress(FileNotFoundError):
                socket.unlink()
        self._log.info("ended")

    def _runner(self) -> Runner:
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

    def _agent(self, runner: Runner, manager: ServiceManager) -> Agent:
        parts = self._parts
        holds = parts.holds(ask=False)

        def held() -> str | None:
            active = holds.active()
            return str(active[0]) if active else None

        return Agent(
            me=self._fleet.node,
            may=self._fleet.may,
            verifier=self._fleet.verifier,
            inbox=Inbox(parts.settings.state / "agent" / "inbox.sqlite", parts.clock),
            runner=runner,
            held=held,
            clock=parts.clock,
            log=self._log,
            alive=manager.alive,
        )

    def _on_the_bus(self, agent: Agent, runner: Runner) -> tuple[Session, Keeper]:
        describer = Describer(self._fleet, agent)
        session = Session(
            agent,
            connect=self._fleet.connect,
            serve=self._desk(agent, describer).serve,
            describe=describer.signed,
            log=self._log,
            keyprefix=self._fleet.settings.agent.keyprefix,
        )
        keeper = Keeper(
            session.store,
            self._parts.clock,
            self._log,
            holder=agent.me,
            session=str(uuid.uuid4()),
            lost=lambda run: self._fence(runner, run),
        )
        return session, keeper

    def _desk(self, agent: Agent, describer: Describer) -> Desk:
        def run(caller: str, noop: bool, only: Sequence[str]) -> str | None:
            return agent.want(Kind.REQUEST, sender=caller, noop=noop, only=only)

        return Desk(
            reception=self._fleet.identity.reception(),
            signer=self._fleet.signer,
            holds=self._parts.holds(ask=False),
            actions=Actions(
                status=describer.status,
                last_run=describer.last_run,
                run=run,
                changed=agent.poke,
            ),
            clock=self._parts.clock,
            log=self._log,
        )

    @asynccontextmanager
    async def _store(self, session: Session, engine: str | None) -> AsyncGenerator[KeyValue, None]:
        """Lend the session's store; for another engine, one of its own."""
        if engine in (None, self._fleet.settings.bus.engine):
            yield await session.store()
            return
        async with self._fleet.connected(engine) as kv:
            yield kv

    def _paths(self, agent: Agent, run: str | None) -> Iterable[tuple[NodeName, ...]]:
        """Return along which paths Puppet code may send on.

        Without a run's id it is taken for the run that is on: a `run_cmd` may have lost its
        environment on the way, and must not begin a new chain each time.
        """
        return agent.paths() if run is None else paths_of(self._parts.records, run)

    def _on_signals(self, runner: Runner) -> None:
        def end() -> None:
            if self._now or self._stop.is_set():
                self._log.info("ending the run that is on")
                runner.end()
            elif not self._stop.is_set():
                self._log.info("ending; a run that is on may finish")
            self._stop.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)

    def _fence(self, runner: Runner, run: str | None) -> None:
        """End the run whose lock was lost: another node may rely on that lock from now on."""
        self._log.warning(f"ending run {run or 'that is on'}: its lock was lost")
        runner.end()

    async def _give_back(self, agent: Agent, keeper: Keeper) -> None:
        """Give back the locks of runs that are over."""
        changed = agent.subscribe()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), LOOK)
            changed.clear()
            for run in keeper.runs():
                if self._over(run):
                    await keeper.over(run)

    def _over(self, run: str) -> bool:
        records = self._parts.records
        try:
            return records.status(records.get(run)).state is State.FINISHED
        except InvalidInputError:
            return True  # there is no such run, or its record was tidied up

    async def _tick(self, agent: Agent) -> None:
        """Ask for the periodic run: at this node's own second of each period."""
        every = self._fleet.settings.agent.every
        if every is None:
            return
        phase = splay(agent.me, every)
        clock = self._parts.clock
        due = _next(clock.now().timestamp(), every, phase)
        while True:
            now = clock.now().timestamp()
            if now >= due:
                agent.want(Kind.TIMER, good_for=every)
            if now >= due or due - now > every:  # or somebody set the clock back
                due = _next(now, every, phase)
            await asyncio.sleep(min(due - now, LONGEST))

    def _rhythm(self) -> str:
        every = self._fleet.settings.agent.every
        return "no periodic run" if every is None else f"a run every {show_duration(every)}"


def _next(now: float, every: float, phase: float) -> float:
    """Return the first second after `now` at which a period of this node begins."""
    return (math.floor((now - phase) / every) + 1) * every + phase
