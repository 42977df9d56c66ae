"""Checks, for `check`, the fleet's settings and policies, and what the node would collect now."""

import os

from localpuppet.fleet.bus.tls_failure import certificate_problem
from localpuppet.fleet.cli.record.collected import would_take
from localpuppet.fleet.exports.collecting import read_collect_policy
from localpuppet.fleet.exports.recording import CollectorRecord
from localpuppet.fleet.inventory.admission import read_claims
from localpuppet.fleet.settings.fleet import FleetSettings, require_server_bus
from localpuppet.fleet.settings.peers import PeerSettings
from localpuppet.fleet.trust.policy import read_policy
from localpuppet.fleet.wiring.exports import ExportsWiring
from localpuppet.fleet.wiring.fleet import FleetWiring, fleet_settings, peers
from localpuppet.node.app import CommandAddition, NodeApp


def check_fleet(node: NodeApp) -> CommandAddition:
    """Return what the policies allow, and what collectors would take of other nodes now.

    Raises:
        InvalidInputError: A setting or policy is invalid, or the agent has two processes, and its
            bus is a file.
    """
    settings, site = fleet_settings(node), peers(node)
    socket = settings.agent.network.socket
    if os.access(socket, os.F_OK):  # the run side or its socket unit made it
        require_server_bus(settings.bus, where=str(socket))
    collected: list[CollectorRecord] = []
    if settings.bus.named:
        collected = ExportsWiring(node).would_take(FleetWiring(node).name)
    return CommandAddition(
        fields={"collectors": [collector.to_dict() for collector in collected]},
        paragraphs=[would_take(collected)] if collected else (),
        warnings=[
            *_certificates(node, settings),
            *_claims(settings, site),
            *_collects(site),
            *_reacts(settings, site),
        ],
    )


def _certificates(node: NodeApp, settings: FleetSettings) -> list[str]:
    """Return why the servers of the bus, or this node, must refuse a certificate in use."""
    servers = settings.bus.servers.get(settings.bus.engine)
    files = () if servers is None else filter(None, (servers.ca, servers.certificate))
    problems = {file: certificate_problem(file, node.clock.now()) for file in files}
    return [f"{file}: the certificate {why}: renew it" for file, why in problems.items() if why]


def _claims(settings: FleetSettings, site: PeerSettings) -> list[str]:
    policy = site.inventory.policy
    if read_claims(policy) is None and settings.bus.engine != "sqlite":
        return [f"there is no {policy}: each node may claim any role and address"]
    return []


def _collects(site: PeerSettings) -> list[str]:
    policy = read_collect_policy(site.collect_policy)
    return [f"{site.collect_policy}: {warning}" for warning in policy.warnings()]


def _reacts(settings: FleetSettings, site: PeerSettings) -> list[str]:
    policy = read_policy(site.policy) if settings.agent.react else None
    if policy is None or policy.may_allow("react"):
        return []
    return [
        f"{site.policy}: no line allows react, so this node ignores changes of other nodes: "
        "add one, or 'agent: {react: false}' in localpuppet.yaml"
    ]
