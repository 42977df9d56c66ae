"""Reports, for `check`, what a node's policies allow, and what its collectors would take."""

from localpuppet.fleet.exports.collecting import read_collect_policy
from localpuppet.fleet.exports.recording import CollectorRecord
from localpuppet.fleet.inventory.admission import read_claims
from localpuppet.fleet.trust.policy_file import read_policy
from localpuppet.fleet.wiring.exports import ExportsWiring
from localpuppet.fleet.wiring.fleet import FleetWiring
from localpuppet.fleet.wiring.settings import fleet_settings, peers
from localpuppet.node.wiring.node import NodeWiring


def warnings(node: NodeWiring) -> list[str]:
    """Return warnings about what the policies allow; this reads all policies."""
    return [*_claims(node), *_collects(node), *_reacts(node)]


def would_collect(node: NodeWiring) -> list[CollectorRecord]:
    """Return what the collectors of the newest run would get now, without a look at the bus."""
    if not fleet_settings(node).bus.named:
        return []
    return ExportsWiring(node).would_take(FleetWiring(node).name)


def _claims(node: NodeWiring) -> list[str]:
    policy = peers(node).inventory.policy
    if read_claims(policy) is None and fleet_settings(node).bus.engine != "sqlite":
        return [f"there is no {policy}: each node may claim any role and address"]
    return []


def _collects(node: NodeWiring) -> list[str]:
    path = peers(node).collect_policy
    policy = read_collect_policy(path)
    return [f"{path}: {warning}" for warning in policy.warnings()]


def _reacts(node: NodeWiring) -> list[str]:
    path = peers(node).policy
    policy = read_policy(path) if fleet_settings(node).agent.react else None
    if policy is None or policy.may_allow("react"):
        return []
    return [
        f"{path}: no line allows react, so this node ignores changes of other nodes: add one, "
        "or 'agent: {react: false}' in localpuppet.yaml"
    ]
