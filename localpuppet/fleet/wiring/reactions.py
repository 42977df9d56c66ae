"""Builds the parts that make a node react to other nodes' entries."""

from localpuppet.base.machine.ports import Log
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.reactions.collectors import Collectors
from localpuppet.fleet.agent.reactions.dependency import DependencySource
from localpuppet.fleet.agent.reactions.finished_runs import FinishedRuns
from localpuppet.fleet.agent.reactions.memory import ReactionMemory
from localpuppet.fleet.agent.reactions.questions import Questions
from localpuppet.fleet.agent.reactions.reactor import ReactionPorts, Reactor
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.trust.policy_file import peer_refusal
from localpuppet.fleet.wiring.exports import ExportsWiring
from localpuppet.fleet.wiring.settings import peers
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.state import open_records


def reactor(node: NodeWiring, agent: Agent, view: View, log: Log) -> Reactor:
    """Return the service that requests a run when an answer to a query of the catalog changes.

    Args:
        node: The parts of the node.
        agent: Runs Puppet.
        view: The entries of other nodes.
        log: The log of the service.
    """
    clock, records = node.clock, open_records(node)
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
