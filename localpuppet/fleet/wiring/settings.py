"""The fleet sections of a node's settings, each read once, and the node's name."""

from typing import TYPE_CHECKING

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.settings.peers import PeerSettings, peer_settings
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.fleet.settings.fleet import FleetSettings


def peers(node: NodeWiring) -> PeerSettings:
    """Return how a node deals with other nodes."""
    return node.section(peer_settings)


def fleet_settings(node: NodeWiring) -> "FleetSettings":
    """Return the settings of a node's bus and agent."""
    from localpuppet.fleet.settings.fleet import fleet_settings_of

    return node.section(fleet_settings_of)


def node_name(node: NodeWiring) -> NodeName:
    """Return a node's name: from the settings, or Puppet's certname in lower case.

    Raises:
        InvalidInputError: The name is invalid.
        PuppetMissingError: No file sets the name, and Puppet is not installed.
    """
    if name := fleet_settings(node).node:
        return name
    from localpuppet.node.wiring.state import require_puppet

    return NodeName.parse(require_puppet(node).settings["certname"].lower())
