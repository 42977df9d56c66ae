"""Builds the parts of an agent, and serves them: both sides in one process, or one of the two."""

import asyncio
import pwd
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.files import make_public, remove_half_written
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.service_manager import ServiceManager, given_socket
from localpuppet.base.machine.unix_socket import listen_to
from localpuppet.base.machine.waiting import run_until
from localpuppet.fleet.agent import fork_runner
from localpuppet.fleet.agent.agent import Agent, Runner, RunObstacles, recorded_end
from localpuppet.fleet.agent.bus_session import BusSession, Describer, LocalRunSide, lend_store
from localpuppet.fleet.agent.confirmation import ConfirmationMemory, ReturnRoute
from localpuppet.fleet.agent.confirming import BusProbe, Confirming, ask_command
from localpuppet.fleet.agent.rollout_steps import (
    AwaitedEntries,
    CompilationJobs,
    Deployments,
    RolloutSteps,
)
from localpuppet.fleet.agent.run_service import NetworkSide, RunService, Task
from localpuppet.fleet.agent.service_log import ServiceLog
from localpuppet.fleet.agent.split import RunSideServer, read_spooled
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.proxy import ProxyKeyValue
from localpuppet.fleet.bus.servers import ServerSelector
from localpuppet.fleet.edges.cycles import CycleWatch
from localpuppet.fleet.edges.reactions import DependencySource, ReactionMemory
from localpuppet.fleet.edges.reactor import Collectors, FinishedRuns, Questions, Reactor
from localpuppet.fleet.inventory.entry_publisher import Publisher
from localpuppet.fleet.inventory.outbox import awaited
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.kept_catalogs import CatalogKeeper
from localpuppet.fleet.leases.keeper import Keeper, LeaseBook, LockUsers
from localpuppet.fleet.leases.lease import Leases
from localpuppet.fleet.requests.request_handler import Actions, RequestHandler
from localpuppet.fleet.triggers.cause import CauseKind
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.trigger_admission import Admission, SignedAdmission
from localpuppet.fleet.trust.policy import peer_refusal
from localpuppet.node.app import program_environment
from localpuppet.node.enc.assignment import AssignedRelease
from localpuppet.node.runs import metrics_file
from localpuppet.node.runs.holds import Holds, HoldStatus
from localpuppet.node.runs.run_replies import foreseen_reply

# Lends the connected store of an engine; `None` means the site's engine.
Lend = Callable[[str | None], AbstractAsyncContextManager[KeyValue]]
Store = Callable[[], Awaitable[KeyValue]]


async def serve_both(fleet: FleetApp, log: ServiceLog, *, now: bool) -> None:
    """Serve both sides of the agent until a signal ends it; with `now`, that ends a run, too."""

    def lend(engine: str | None) -> AbstractAsyncContextManager[KeyValue]:
        return lend_store(session, engine, own=bus.engine, connect=fleet.connect)

    bus, keyprefix = fleet.settings.bus, fleet.settings.agent.keyprefix
    app = AgentApp(fleet, log, lend=lend, store=lambda: session.store())
    session = BusSession(app.side, connect=fleet.connect, log=log, keyprefix=keyprefix)
    await app.run_service(now=now).serve(session.run, *app.tasks(), to=f"on {bus.engine}")


async def serve_run(fleet: FleetApp, log: ServiceLog, *, now: bool) -> None:
    """Serve the run side until a signal ends it; see `serve_both`.

    Raises:
        InvalidInputError: The user of the network side does not exist.
    """
    sides, timeout = fleet.settings.agent.network, fleet.settings.bus.timeout
    user = _user(sides.user)

    relayed = ProxyKeyValue(sides.relay, engine=None, timeout=timeout, owner=user.pw_uid)

    async def store() -> KeyValue:
        return relayed

    @asynccontextmanager
    async def lend(engine: str | None) -> AsyncGenerator[KeyValue, None]:
        yield ProxyKeyValue(sides.relay, engine=engine, timeout=timeout, owner=user.pw_uid)

    app = AgentApp(fleet, log, lend=lend, store=store)
    door = RunSideServer(
        app.side,
        read=partial(read_spooled, sides.spool, user.pw_uid),
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

    service = app.run_service(now=now)
    await service.serve(serve, *app.tasks(), to=f"for the network side of {sides.user}")


async def serve_network(fleet: FleetApp, log: ServiceLog) -> None:
    """Serve the side that talks to the bus, and that has no rights on this machine.

    Only settings and files that this user may read are used.
    """

    async def connect(me: NodeName, engine: str | None) -> KeyValue:
        return await FleetApp(fleet.node, name=me).connect(engine)

    await NetworkSide(
        fleet.settings,
        connect=connect,
        verifier=lambda own: fleet.identity.verifier(own=own),
        log=log,
    ).serve()


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        raise InvalidInputError(
            f"the user {name} does not exist",
            where="agent.network",
            hint="create it with 'useradd --system', or apply class localpuppet::agent",
        ) from error


class AgentApp:
    """The parts of an agent's run side, which signs, and verifies all that the network side sends.

    Raises:
        BusyError: Another agent uses this node's state, even if its sockets differ. Two agents
            would each run for a cause that one of them accepted.
    """

    def __init__(self, fleet: FleetApp, log: ServiceLog, *, lend: Lend, store: Store) -> None:
        self._fleet = fleet
        self._node = node = fleet.node
        self._log = log
        self._lend = lend
        self._store = store
        self._settings = fleet.settings.agent
        self._state = node.settings.state
        self._signer = fleet.signer  # creates a missing key, which the verifier must know, too
        path = self._state / "agent" / "lock"
        self._lock = Flock.need(path, "another agent of this node is running")
        remove_half_written(path.parent)
        self._holds: Holds | None = None
        self._auditor = fleet.history.auditor(log)

    def run_service(self, *, now: bool) -> RunService:
        """Return the service of the run side; `now`: a signal also ends the current run."""

        def paths(run: str | None) -> Iterable[tuple[NodeName, ...]]:
            # A call without a run's id counts for the current run: a `run_cmd` may have lost its
            # environment, and must not begin a new chain each time.
            return self.agent.paths() if run is None else self._fleet.paths_of_run(run)

        keeper = self._keeper()
        return RunService(
            agent=self.agent,
            runner=self._runner,
            keeper=keeper,
            around=(self._confirming.keep,),
            calls=self._fleet.puppet_calls(store=self._lend, paths=paths, keeper=keeper),
            identify=self._node.processes.identify,
            socket=self._fleet.peers.socket,
            state=self._state,
            lock=self._lock,
            manager=ServiceManager.from_environment(),
            clock=self._node.clock,
            log=self._log,
            run_interval=self._settings.run_interval,
            signer=str(self._signer.name),
            now=now,
        )

    def tasks(self) -> list[Task]:
        """Return the tasks that publish, follow other nodes' entries, react, and keep Puppet warm.

        They run on the run side.
        """
        seen = asyncio.Event()
        follower = self._fleet.follower(self._store, self._log, changed=seen.set)
        tasks: list[Task] = [
            partial(self._publisher().run, self.agent.subscribe()),
            follower.follow,
        ]
        if self._settings.react:
            reactor = self._reactor(self._fleet.view())
            tasks.append(partial(reactor.run, seen, self.agent.subscribe()))
        if self._settings.warm and self._settings.run_cmd is None:
            start = partial(fork_runner.start_server, self._node)
            tasks.append(fork_runner.ForkServerKeeper(self.agent, start=start, log=self._log).keep)
        return tasks

    @cached_property
    def agent(self) -> Agent:
        """The agent: causes become runs."""
        fleet = self._fleet
        admission = Admission(
            me=fleet.name,
            trigger_refusal=partial(peer_refusal, fleet.peers.policy, action="trigger"),
            seen=self._inbox.seen,
        )
        return Agent(
            admission=SignedAdmission(admission, fleet.verifier, self._node.clock, self._auditor),
            inbox=self._inbox,
            runner=self._runner,
            obstacles=RunObstacles(
                held=lambda: HoldStatus.by(self._known_holds().active()),
                lacking=self._entries.lacking,
                begun=partial(recorded_end, self._node.records),
            ),
            clock=self._node.clock,
            log=self._log,
        )

    @cached_property
    def side(self) -> LocalRunSide:
        return LocalRunSide(
            self.agent, serve=self._handler().serve, describe=self._describer.signed
        )

    @cached_property
    def _inbox(self) -> Inbox:
        return Inbox(self._state / "agent" / "inbox.sqlite", self._node.clock)

    @cached_property
    def _entries(self) -> AwaitedEntries:
        view = self._fleet.view()
        is_current = partial(self._fleet.entries.is_current, view)
        return AwaitedEntries(view, self._fleet.held_exports, is_current=is_current)

    @cached_property
    def _runner(self) -> Runner:
        settings, command = self._node.settings, self._settings.run_cmd
        if command is not None:
            return fork_runner.CommandRunner(
                command,
                {**program_environment(), **self._fleet.own_variables},
                lock=self._state / "agent" / "run_cmd.lock",
                timeout=settings.timeouts.run,
                grace=settings.timeouts.grace,
            )
        fork_runner.warm(self._node)
        return fork_runner.ForkRunner(partial(fork_runner.run_order, self._node))

    def _known_holds(self) -> Holds:
        """Return the holds; `puppet agent --disable` counts as soon as Puppet is known."""
        if self._holds is None or not self._holds.with_puppets:
            self._holds = self._node.holds(ask=False)
        return self._holds

    @cached_property
    def _describer(self) -> Describer:
        node, outbox = self._node, self._fleet.publishing.outbox
        return Describer(
            self.agent,
            started_at=show_time(node.clock.now()),
            has_entry=lambda: outbox.stamp() > 0,
            holds=self._known_holds,
            records=self._node.records,
            attempt=node.attempts.newest,
            modules=node.settings.modules,
            rollback=node.rollback_in_force,
            assigned=AssignedRelease(self._state).read,
            run_interval=self._settings.run_interval,
            confirmation=self._confirming.report,
            signer=self._signer,
            clock=node.clock,
        )

    def _handler(self) -> RequestHandler:
        fleet, node, log = self._fleet, self._node, self._log
        agent, describer, holds = self.agent, self._describer, self._known_holds
        outbox, ours = fleet.publishing.outbox, self._settings.run_cmd is None

        def request_run(
            caller: str, noop: bool, puppet_tags: Sequence[str], request: str
        ) -> str | None:
            return agent.request_run(
                CauseKind.REQUEST,
                sender=caller,
                noop=noop,
                puppet_tags=puppet_tags,
                request=request,
            )

        actions = Actions(
            status=describer.status,
            durations=describer.durations,
            last_run=describer.last_run,
            report=describer.report,
            log=describer.log,
            capture=fleet.captures.reply,
            catalog=CatalogKeeper(self._state).reply,
            changes=partial(foreseen_reply, self._state, node.records) if ours else None,
            run=request_run,
            changed=agent.recheck,
            deploy=Deployments(
                fork_runner.ForkRunner(partial(fork_runner.deploy, node)),
                agent=agent,
                inbox=self._inbox,
                holds=holds,
                log=log,
            ).ask,
            confirm=self._confirming.answer,
            compile=CompilationJobs(
                fork_runner.ForkRunner(partial(fork_runner.compile_candidate, node)), log=log
            ).ask,
            rollout=RolloutSteps(
                agent,
                inbox=self._inbox,
                holds=holds,
                clock=node.clock,
                entry=lambda: awaited(outbox.entry()),
                awaits_entries=self._entries.come,
            ),
        )
        return RequestHandler(
            reception=fleet.request_admission(),
            signer=self._signer,
            holds=holds,
            actions=actions,
            audit=self._auditor,
            clock=node.clock,
            log=log,
        )

    def _keeper(self) -> Keeper:
        node, session = self._node, str(uuid.uuid4())
        users = LockUsers(
            self._node.records, node.processes, self._log, grace=node.settings.timeouts.grace
        )

        async def leases() -> Leases:
            return self._fleet.leases(await self._store(), holder=self.agent.me, session=session)

        return Keeper(
            leases,
            node.clock,
            self._log,
            book=LeaseBook(
                self._state / "agent" / "leases.sqlite", boot_id=node.processes.me().boot_id
            ),
            relies=users.go_on,
            lost=users.end,
        )

    @cached_property
    def _confirming(self) -> Confirming:
        """The service that confirms deployed releases, or rolls them back."""
        fleet, node = self._fleet, self._node
        bus, command = fleet.settings.bus, self._settings.confirm_command
        servers = bus.servers.get(bus.engine)  # `None` for an engine that is a file
        answers = None
        if servers is not None:
            endpoints = [(endpoint.host, endpoint.port) for endpoint in servers.endpoints]
            answers = ServerSelector(endpoints, timeout=bus.timeout).answers
        environment = {**program_environment(), **fleet.own_variables}
        return Confirming(
            ConfirmationMemory(self._state),
            boot=node.processes.me().boot_id,
            late=lambda late: metrics_file.note_confirmation(node.settings.metrics, late=late),
            command=None
            if command is None
            else partial(ask_command, command, node.processes, env=environment, log=self._log),
            looking=BusProbe(
                self.agent.me, store=self._store, verifier=fleet.verifier, answers=answers
            ),
            back=ReturnRoute(
                fork_runner.ForkRunner(partial(fork_runner.retreat, node)),
                agent=self.agent,
                inbox=self._inbox,
                records=node.records,
                holds=self._known_holds,
                assigned=AssignedRelease(self._state).read,
                rollback=node.rollback_in_force,
                clock=node.clock,
            ),
            log=self._log,
        )

    def _publisher(self) -> Publisher:
        """Return the service that publishes the outbox, the history, and the kicks of runs."""
        fleet, store, log = self._fleet, self._store, self._log
        publishing = fleet.publishing
        outbox, history = publishing.outbox, publishing.history
        kicks = fleet.kick_sending(store, log)
        publisher = None if history is None else history.publisher(self._signer, store, log)
        cycles = CycleWatch(outbox, fleet.view(), log)

        async def then(notified: bool) -> None:
            await kicks.step(notified=notified)
            if publisher is not None:
                await publisher.step()
            await cycles.step()

        return Publisher(outbox, fleet.publisher_identity(), store=store, log=log, then=then)

    def _reactor(self, view: View) -> Reactor:
        """Return the service that requests a run when an answer to a query has changed."""
        fleet, clock, records = self._fleet, self._node.clock, self._node.records
        policy, max_stale = fleet.peers.policy, fleet.peers.inventory.max_stale

        def now() -> float:
            return clock.now().timestamp()

        sources: list[DependencySource] = [
            Questions(view, records, now=now, max_stale=max_stale),
            Collectors(
                view,
                records,
                collecting=fleet.collecting(self.agent.me),
                now=now,
                max_stale=max_stale,
            ),
        ]
        return Reactor(
            self.agent,
            runs=FinishedRuns(records, sources),
            sources=sources,
            peers=view,
            refusal=lambda peer: peer_refusal(policy, peer, "react"),
            memory=ReactionMemory(self._state),
            clock=clock,
            log=self._log,
        )
