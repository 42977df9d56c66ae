"""Builds the parts that confirm a deployed release, or roll it back."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from localpuppet.base.errors import StateError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.machine.server_selector import ServerSelector
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.confirmation.bus_probe import Answers, BusProbe, Store
from localpuppet.fleet.agent.confirmation.memory import ConfirmationMemory
from localpuppet.fleet.agent.confirmation.retreat import RetreatService
from localpuppet.fleet.agent.confirmation.service import ConfirmationContext, Confirming
from localpuppet.fleet.agent.fork_runner import ForkRunner
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.wiring.agent_child import retreat
from localpuppet.fleet.wiring.fleet import FleetWiring
from localpuppet.fleet.wiring.puppet_environment import own_variables
from localpuppet.fleet.wiring.settings import fleet_settings
from localpuppet.node.enc.assigned import AssignedRelease
from localpuppet.node.runs import metrics
from localpuppet.node.runs.holds import Holds
from localpuppet.node.wiring.node import NodeWiring, program_environment
from localpuppet.node.wiring.state import open_records, rollback_in_force

COMMAND_TIMEOUT = 60.0  # seconds for a `confirm_command`
MAX_OUTPUT = 64 * 1024


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
            rollback=partial(rollback_in_force, node),
            records=open_records(node),
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
            records=open_records(node),
            holds=holds,
            clock=node.clock,
        ),
        agent=agent,
        clock=node.clock,
        log=log,
    )


def _answers(node: NodeWiring) -> Answers | None:
    """Return the check whether a bus server answers; `None` for an engine that is a file."""
    bus = fleet_settings(node).bus
    servers = bus.servers.get(bus.engine)
    if servers is None:
        return None
    endpoints = [(endpoint.host, endpoint.port) for endpoint in servers.endpoints]
    return ServerSelector(endpoints, timeout=bus.timeout).answers


def _command(node: NodeWiring, log: Log) -> Callable[[], Awaitable[bool]] | None:
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
