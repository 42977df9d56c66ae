"""Builds the parts of an agent's run side: inbox, runner, leases, requests, Puppet's socket."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.files import remove_half_written
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.machine.server_selector import ServerSelector
from localpuppet.base.machine.service_manager import ServiceManager
from localpuppet.base.machine.unix_socket import listen
from localpuppet.fleet.agent.admission import SignedAdmission
from localpuppet.fleet.agent.agent import Agent, Runner, RunObstacles, recorded_end
from localpuppet.fleet.agent.awaited_entries import AwaitedEntries
from localpuppet.fleet.agent.confirmation.pending import ConfirmationMemory
from localpuppet.fleet.agent.confirmation.retreat import RetreatService
from localpuppet.fleet.agent.confirmation.service import (
    Answers,
    BusProbe,
    ConfirmationContext,
    Confirming,
    Store,
)
from localpuppet.fleet.agent.fork_runner import CommandRunner, ForkRunner
from localpuppet.fleet.agent.jobs import CompilationJobs
from localpuppet.fleet.agent.lock_users import LockUsers
from localpuppet.fleet.agent.log import AgentLog
from localpuppet.fleet.agent.rollout_steps import Deployments, RolloutSteps
from localpuppet.fleet.agent.run_service import RunParts
from localpuppet.fleet.agent.run_side import LocalRunSide
from localpuppet.fleet.agent.status import Describer, NodeRecords
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.catalogs.keeping import CatalogKeeper
from localpuppet.fleet.history.auditing import Auditor
from localpuppet.fleet.inventory.outbox import awaited
from localpuppet.fleet.leases.keeper import Keeper, LeaseBook
from localpuppet.fleet.leases.lease import Leases
from localpuppet.fleet.requests.handler import Actions, RequestHandler
from localpuppet.fleet.triggers.admission import Admission
from localpuppet.fleet.triggers.cause import CauseKind
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.trust.policy import peer_refusal
from localpuppet.fleet.wiring.agent_child import compile_candidate, deploy, retreat, run_order, warm
from localpuppet.fleet.wiring.exports import ExportsWiring
from localpuppet.fleet.wiring.fleet import FleetWiring, fleet_settings, paths_of_run, peers
from localpuppet.fleet.wiring.history import HistoryWiring
from localpuppet.fleet.wiring.inventory import InventoryWiring, known_stores
from localpuppet.fleet.wiring.publishing import PublishingWiring, capture_keeper
from localpuppet.fleet.wiring.puppet_calls import own_variables, puppet_calls
from localpuppet.node.app import NodeApp, program_environment
from localpuppet.node.enc.assignment import AssignedRelease
from localpuppet.node.runs import metrics
from localpuppet.node.runs.hold import Holds, HoldStatus
from localpuppet.node.runs.run_replies import NoopReporter

# Lends the connected store of an engine; `None` means the site's engine.
Lend = Callable[[str | None], AbstractAsyncContextManager[KeyValue]]
COMMAND_TIMEOUT = 60.0  # seconds for a `confirm_command`
MAX_OUTPUT = 64 * 1024


def run_parts(
    fleet: FleetWiring, log: AgentLog, *, lend: Lend, store: Callable[[], Awaitable[KeyValue]]
) -> RunParts:
    """Return the parts of the run side.

    Args:
        fleet: The parts of a fleet node.
        log: The agent's log.
        lend: Lends the store of an engine.
        store: Returns the connected store of the site.

    Raises:
        BusyError: Another agent uses this node's state, even if its sockets differ. Two agents
            would each run for a cause that one of them accepted.
    """
    node = fleet.node
    signer = fleet.signer  # creates a missing key, which the verifier must know, too
    path = node.settings.state / "agent" / "lock"
    lock = Flock.need(path, "another agent of this node is running")
    remove_half_written(path.parent)
    manager = ServiceManager.from_environment()
    runner = _runner(node)
    holds = _KnownHolds(node)
    inbox = Inbox(node.settings.state / "agent" / "inbox.sqlite", node.clock)
    inventory = InventoryWiring(node, fleet=fleet)
    view = inventory.view()
    entries = AwaitedEntries(
        view, ExportsWiring(node).held(), is_current=partial(inventory.is_current, view)
    )
    auditor = HistoryWiring(fleet).auditor(log)
    obstacles = RunObstacles(
        held=lambda: HoldStatus.by(holds().active()),
        lacking=entries.lacking,
        begun=partial(recorded_end, node.records),
    )
    agent = Agent(
        admission=_admission(fleet, inbox, auditor),
        inbox=inbox,
        runner=runner,
        obstacles=obstacles,
        clock=node.clock,
        log=log,
    )
    keeper = _keeper(fleet, log, agent, store)

    def paths(run: str | None) -> Iterable[tuple[NodeName, ...]]:
        # A call without a run's id counts for the current run: a `run_cmd` may have lost its
        # environment, and must not begin a new chain each time.
        return agent.paths() if run is None else paths_of_run(node, run)

    confirmation = confirming(fleet, agent, inbox, holds=holds, store=store, log=log)
    outbox = PublishingWiring(node, fleet=fleet).outbox()
    kept = NodeRecords(
        started_at=show_time(node.clock.now()),
        has_entry=lambda: outbox.stamp() > 0,
        holds=holds,
        records=node.records,
        attempt=node.attempts.newest,
        modules=node.settings.modules,
        rollback=node.rollback_in_force,
        assigned=AssignedRelease(node.settings.state).read,
        run_interval=fleet_settings(node).agent.run_interval,
        confirmation=confirmation.report,
    )
    describer = Describer(agent, kept, signer=signer, clock=node.clock)
    ours = fleet_settings(node).agent.run_cmd is None

    def request_run(caller: str, noop: bool, puppet_tags: Sequence[str]) -> str | None:
        return agent.request_run(
            CauseKind.REQUEST, sender=caller, noop=noop, puppet_tags=puppet_tags
        )

    actions = Actions(
        status=describer.status,
        durations=describer.durations,
        last_run=describer.last_run,
        report=describer.report,
        log=describer.log,
        capture=capture_keeper(node).reply,
        catalog=CatalogKeeper(node.settings.state).reply,
        changes=NoopReporter(node.settings.state, node.records) if ours else None,
        run=request_run,
        changed=agent.recheck,
        deploy=Deployments(
            ForkRunner(partial(deploy, node)), agent=agent, inbox=inbox, holds=holds, log=log
        ).ask,
        confirm=confirmation.answer,
        compile=CompilationJobs(ForkRunner(partial(compile_candidate, node)), log=log).ask,
        rollout=RolloutSteps(
            agent,
            inbox=inbox,
            holds=holds,
            clock=node.clock,
            entry=lambda: awaited(outbox.entry()),
            awaits_entries=entries.come,
        ),
    )
    desk = RequestHandler(
        reception=fleet.identity.reception(),
        signer=signer,
        holds=holds,
        actions=actions,
        audit=auditor,
        clock=node.clock,
        log=log,
    )
    return RunParts(
        agent=agent,
        runner=runner,
        side=LocalRunSide(agent, serve=desk.serve, describe=describer.signed),
        keeper=keeper,
        around=(confirmation.keep,),
        calls=puppet_calls(
            fleet,
            inventory.calls(),
            inventory.export_calls(),
            store=lend,
            paths=paths,
            keeper=keeper,
        ),
        listen=listen,
        identify=node.processes.identify,
        socket=peers(node).socket,
        state=node.settings.state,
        lock=lock,
        manager=manager,
        clock=node.clock,
        log=log,
        run_interval=fleet_settings(node).agent.run_interval,
        signer=str(signer.name),
    )


class _KnownHolds:
    """Returns the holds; `puppet agent --disable` counts as soon as Puppet is known."""

    def __init__(self, node: NodeApp) -> None:
        self._node = node
        self._known: Holds | None = None

    def __call__(self) -> Holds:
        if self._known is None or not self._known.with_puppets:
            self._known = self._node.holds(ask=False)
        return self._known


def _runner(node: NodeApp) -> Runner:
    settings = node.settings
    command = fleet_settings(node).agent.run_cmd
    if command is not None:
        return CommandRunner(
            command,
            {**program_environment(), **own_variables(node)},
            lock=settings.state / "agent" / "run_cmd.lock",
            timeout=settings.run_timeout,
            grace=settings.grace,
        )
    warm(node)
    return ForkRunner(partial(run_order, node))


def _admission(fleet: FleetWiring, inbox: Inbox, auditor: Auditor) -> SignedAdmission:
    node = fleet.node
    admission = Admission(
        me=fleet.name,
        trigger_refusal=partial(peer_refusal, peers(node).policy, action="trigger"),
        seen=inbox.seen,
    )
    return SignedAdmission(admission, fleet.verifier, node.clock, auditor)


def _keeper(
    fleet: FleetWiring, log: AgentLog, agent: Agent, store: Callable[[], Awaitable[KeyValue]]
) -> Keeper:
    node = fleet.node
    stores = known_stores(fleet)
    users = LockUsers(node.records, node.processes, log, grace=node.settings.grace)
    session = str(uuid.uuid4())

    async def leases() -> Leases:
        kv = await store()
        return Leases(kv, node.clock, holder=agent.me, session=session, stores=stores)

    return Keeper(
        leases,
        node.clock,
        log,
        book=LeaseBook(
            node.settings.state / "agent" / "leases.sqlite",
            boot_id=node.processes.me().boot_id,
        ),
        relies=users.go_on,
        lost=users.end,
    )


def confirming(
    fleet: FleetWiring,
    agent: Agent,
    inbox: Inbox,
    *,
    holds: Callable[[], Holds],
    store: Store,
    log: Log,
) -> Confirming:
    """Return the service that confirms deployed releases, or rolls them back.

    Args:
        fleet: The parts of a fleet node.
        agent: The node's agent.
        inbox: The causes and deployments that the agent has accepted.
        holds: Returns the holds.
        store: Returns the store that the agent is connected to.
        log: The agent's log.
    """
    node = fleet.node
    return Confirming(
        ConfirmationContext(
            memory=ConfirmationMemory(node.settings.state),
            assigned=AssignedRelease(node.settings.state).read,
            rollback=node.rollback_in_force,
            records=node.records,
            holds=holds,
            boot=node.processes.me().boot_id,
            late=lambda late: metrics.note_confirmation(node.settings.metrics, late=late),
            command=_command(node, log),
        ),
        looking=BusProbe(agent.me, store=store, verifier=fleet.verifier, answers=_answers(node)),
        retreating=RetreatService(
            ForkRunner(partial(retreat, node)),
            agent=agent,
            inbox=inbox,
            records=node.records,
            holds=holds,
            clock=node.clock,
        ),
        agent=agent,
        clock=node.clock,
        log=log,
    )


def _answers(node: NodeApp) -> Answers | None:
    """Return the check whether a bus server answers; `None` for an engine that is a file."""
    bus = fleet_settings(node).bus
    servers = bus.servers.get(bus.engine)
    if servers is None:
        return None
    endpoints = [(endpoint.host, endpoint.port) for endpoint in servers.endpoints]
    return ServerSelector(endpoints, timeout=bus.timeout).answers


def _command(node: NodeApp, log: Log) -> Callable[[], Awaitable[bool]] | None:
    """Return the call of `confirm_command`; exit code 0 means that this node is online."""
    command = fleet_settings(node).agent.confirm_command
    if command is None:
        return None
    env = {**program_environment(), **own_variables(node)}
    run = partial(
        node.processes.capture, command, env=env, timeout=COMMAND_TIMEOUT, limit=MAX_OUTPUT
    )

    async def ask() -> bool:
        try:
            output = await asyncio.to_thread(run)
        except StateError as error:
            log.warning(f"confirm_command: {error}", kind=LineKind.RUN)
            return False
        return output is not None and output.ended.code == 0

    return ask
