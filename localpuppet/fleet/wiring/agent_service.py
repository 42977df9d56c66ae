"""Runs the agent as a service: both sides in one process, or one of the two."""

import asyncio
import os
import pwd
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.machine.files import make_private, make_public
from localpuppet.base.machine.fork_server import MAX_PATH
from localpuppet.base.machine.kept_process import KeptProcess, start_kept
from localpuppet.base.machine.ports import Log
from localpuppet.base.machine.service_manager import ServiceManager, given_socket
from localpuppet.base.machine.unix_socket import ask, listen_to
from localpuppet.base.machine.waiting import run_until, wait_first
from localpuppet.base.share.files import shared_file
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.bus_session import BusSession
from localpuppet.fleet.agent.fork_runner import ForkServerKeeper
from localpuppet.fleet.agent.log import AgentLog
from localpuppet.fleet.agent.reactions.decision import ReactionMemory
from localpuppet.fleet.agent.reactions.dependency import DependencySource
from localpuppet.fleet.agent.reactions.questions import Collectors, FinishedRuns, Questions
from localpuppet.fleet.agent.reactions.reactor import ReactionPorts, Reactor
from localpuppet.fleet.agent.run_service import RunService, Task
from localpuppet.fleet.agent.split.client import RemoteRunSide
from localpuppet.fleet.agent.split.protocol import Spool, SpoolReader
from localpuppet.fleet.agent.split.server import RunSideServer
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.proxy.store import ProxyKeyValue, ProxyServer
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.trust.policy import peer_refusal
from localpuppet.fleet.wiring.agent_run_side import run_parts
from localpuppet.fleet.wiring.exports import ExportsWiring
from localpuppet.fleet.wiring.fleet import FleetWiring, fleet_settings, peers
from localpuppet.fleet.wiring.inventory import InventoryWiring
from localpuppet.fleet.wiring.publishing import PublishingWiring
from localpuppet.node.app import NodeApp, program_environment
from localpuppet.node.puppet.launching import LIMITS, ServerLimits, server_command

# Seconds between attempts of the network side to reach the run side.
AGAIN = 1.0
# Seconds for the run side to answer: an fsync on a busy disk.
PATIENCE = 15.0
# Upper limit, in seconds, between two watchdog notifications of the network side.
LONGEST_SLEEP = 10.0


async def serve_both(fleet: FleetWiring, log: AgentLog, *, now: bool) -> None:
    """Serve both sides of the agent until a signal ends it.

    Args:
        fleet: The parts of a fleet node.
        log: The agent's log.
        now: Whether a signal also ends the current run.

    Raises:
        BusyError: Another agent is running.
    """

    def lend(engine: str | None) -> AbstractAsyncContextManager[KeyValue]:
        return _lend(fleet, session, engine)

    settings = fleet_settings(fleet.node)
    parts = run_parts(fleet, log, lend=lend, store=lambda: session.store())
    session = BusSession(
        parts.side, connect=fleet.connect, log=log, keyprefix=settings.agent.keyprefix
    )
    inventory = _inventory(fleet, parts.agent, log, store=lambda: session.store())
    await RunService(parts, now=now).serve(
        session.run, *inventory, *_warming(fleet, parts.agent, log), to=f"on {settings.bus.engine}"
    )


async def serve_run(fleet: FleetWiring, log: AgentLog, *, now: bool) -> None:
    """Serve the run side until a signal ends it; see `serve_both`.

    Raises:
        BusyError: Another agent is running.
        InvalidInputError: The user of the network side does not exist.
    """
    settings = fleet_settings(fleet.node)
    sides, timeout = settings.agent.network, settings.bus.timeout
    user = _user(sides.user)

    relayed = ProxyKeyValue(sides.relay, engine=None, timeout=timeout, owner=user.pw_uid)

    async def store() -> KeyValue:
        return relayed

    @asynccontextmanager
    async def lend(engine: str | None) -> AsyncGenerator[KeyValue, None]:
        yield ProxyKeyValue(sides.relay, engine=engine, timeout=timeout, owner=user.pw_uid)

    parts = run_parts(fleet, log, lend=lend, store=store)
    door = RunSideServer(
        parts.side,
        read=SpoolReader(sides.spool, user.pw_uid).read,
        key=fleet.identity.public_key(),
        log=log,
    )
    given = given_socket()
    if given is None:
        make_public(sides.socket.parent)
    server = await listen_to(
        given or sides.socket, door.answer, users=[user.pw_uid], group=user.pw_gid
    )

    async def serve(leave: asyncio.Event) -> None:
        try:
            await run_until(leave, door.guard())
        finally:
            server.close()
            if given is None:
                sides.socket.unlink(missing_ok=True)

    service = RunService(parts, now=now)
    inventory = _inventory(fleet, parts.agent, log, store=store)
    tasks = [serve, *inventory, *_warming(fleet, parts.agent, log)]
    await service.serve(*tasks, to=f"for the network side of {sides.user}")


def _inventory(
    fleet: FleetWiring, agent: Agent, log: AgentLog, *, store: Callable[[], Awaitable[KeyValue]]
) -> list[Task]:
    """Return the tasks that publish this node's entry, follow other nodes' entries, and react.

    They run on the run side, which signs, and which verifies everything from the network side.
    """
    wiring = InventoryWiring(fleet.node, fleet=fleet)
    publisher = PublishingWiring(fleet.node, fleet=fleet).publisher(store, log)
    seen = asyncio.Event()
    follower = wiring.follower(store, log, changed=seen.set)
    tasks: list[Task] = [partial(publisher.run, agent.subscribe()), follower.follow]
    if fleet_settings(fleet.node).agent.react:
        reacting = reactor(fleet.node, agent, wiring.view(), log)
        tasks.append(partial(reacting.run, seen, agent.subscribe()))
    return tasks


def _warming(fleet: FleetWiring, agent: Agent, log: AgentLog) -> list[Task]:
    """Return the task that keeps the fork server, if the settings ask for warm runs of Puppet."""
    settings = fleet_settings(fleet.node).agent
    if not settings.warm or settings.run_cmd is not None:
        return []
    return [warming(fleet.node, agent, log).keep]


class NetworkSide:
    """The side of the agent that talks to the bus, and that has no rights on this machine.

    Args:
        fleet: The wiring; only settings and files that this user may read are used.
        log: The log of the network side.
    """

    def __init__(self, fleet: FleetWiring, log: AgentLog) -> None:
        self._fleet = fleet
        self._log = log
        self._leave = asyncio.Event()
        self._manager = ServiceManager.from_environment()
        sides = fleet_settings(fleet.node).agent.network
        self._sides = sides
        self._spool = Spool(sides.spool)
        self._gate = RemoteRunSide(
            self._ask,
            verifier=lambda own: fleet.identity.verifier(own=own),
            spool=self._spool,
            log=log,
        )

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
        settings = fleet_settings(self._fleet.node)
        session = BusSession(
            self._gate, connect=self._connect, log=self._log, keyprefix=settings.agent.keyprefix
        )
        relay = ProxyServer(partial(_lend, self._fleet, session))
        server = await listen_to(self._sides.relay, relay.answer, users=())
        self._spool.empty()  # no other network side is running now
        self._log.info(f"network side of {self._gate.me} on {settings.bus.engine}")
        self._manager.ready(f"{self._gate.me}: on the bus")
        try:
            await session.run(self._leave)
        finally:
            server.close()
            self._sides.relay.unlink(missing_ok=True)

    async def _connect(self) -> KeyValue:
        """Connect to the bus, after the run side, possibly a new process, has answered."""
        await self._gate.hello()
        return await self._fleet.connect()

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
                self._fleet = FleetWiring(self._fleet.node, name=self._gate.me)
                return True
            await wait_first(self._leave, seconds=AGAIN)
        return False

    async def _beat(self) -> None:
        """Notify systemd's watchdog from the event loop that does all the work."""
        while True:
            self._manager.alive()
            await asyncio.sleep(min(self._manager.pulse, LONGEST_SLEEP))

    def _ask(self, line: bytes) -> AsyncGenerator[bytes, None]:
        return ask(self._sides.socket, line, patience=PATIENCE)


@asynccontextmanager
async def _lend(
    fleet: FleetWiring, session: BusSession, engine: str | None
) -> AsyncGenerator[KeyValue, None]:
    """Lend the session's store; for another engine, a store that is closed afterwards."""
    if engine in (None, fleet_settings(fleet.node).bus.engine):
        yield await session.store()
        return
    async with fleet.connected(engine) as kv:
        yield kv


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        raise InvalidInputError(
            f"the user {name} does not exist",
            where="agent.network",
            hint="create it with 'useradd --system', or apply class localpuppet::agent",
        ) from error


def start_server(node: NodeApp, limits: ServerLimits = LIMITS) -> KeptProcess:
    """Start a node's fork server.

    Args:
        node: The parts of the node.
        limits: The limits that end the server.

    Raises:
        LocalpuppetError: The server cannot be started.
    """
    server = node.fork_server
    installation = node.find_puppet(ask=False)
    if installation is None:
        raise UnavailableError("Puppet was changed; the next run reads its settings again")
    if len(bytes(server.path)) > MAX_PATH:
        raise UnavailableError("is too long for a socket's name", where=str(server.path))
    make_private(server.path.parent)
    command, env = server_command(
        installation,
        base=program_environment(),
        lean=node.lean_start(installation),
        script=shared_file("fork_server.rb"),
        socket=server.path,
        names=server.path.with_suffix(".names"),
        limits=limits,
    )
    process = start_kept(command, env=env)
    try:
        server.note(process.identity)
    except StateError:
        process.end()
        process.code()
        raise
    return process


def warming(node: NodeApp, agent: Agent, log: Log) -> ForkServerKeeper:
    """Return the service that keeps a node's fork server."""
    return ForkServerKeeper(agent, start=partial(start_server, node), log=log)


def reactor(node: NodeApp, agent: Agent, view: View, log: Log) -> Reactor:
    """Return the service that requests a run when an answer to a query of the catalog changes.

    Args:
        node: The parts of the node.
        agent: Runs Puppet.
        view: The entries of other nodes.
        log: The log of the service.
    """
    clock, records = node.clock, node.records
    collecting = ExportsWiring(node).collecting(agent.me)
    policy, max_stale = peers(node).policy, peers(node).inventory.max_stale

    def now() -> float:
        return clock.now().timestamp()

    sources: list[DependencySource] = [
        Questions(view, records, now=now, max_stale=max_stale),
        Collectors(view, collecting, records, now=now, max_stale=max_stale),
    ]
    world = ReactionPorts(
        host=agent,
        runs=FinishedRuns(records, sources),
        sources=sources,
        peers=view,
        refusal=lambda peer: peer_refusal(policy, peer, "react"),
    )
    return Reactor(world, ReactionMemory(node.settings.state), clock=clock, log=log)
