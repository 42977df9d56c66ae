"""The fleet's sections of a node's settings, each read once, and the node's name."""

from typing import TYPE_CHECKING

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.settings.peers import PeerSettings, peer_settings
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.fleet.settings.fleet import FleetSettings


def peers(node: NodeWiring) -> PeerSettings:
    """Return how a node deals with other nodes.

    Raises:
        InvalidInputError: A setting is refused.
    """
    return node.section(peer_settings)


def fleet_settings(node: NodeWiring) -> "FleetSettings":
    """Return the settings of a node's bus and agent.

    Raises:
        InvalidInputError: A setting is refused.
    """
    from localpuppet.fleet.settings.fleet import fleet_settings_of

    return node.section(fleet_settings_of)


def node_name(node: NodeWiring) -> NodeName:
    """Return a node's name: the setting, or Puppet's certname in lower case.

    Raises:
        InvalidInputError: The name is not a node's name.
        PuppetMissingError: No file sets the name, and there is no Puppet to ask.
    """
    name = fleet_settings(node).node
    return name or NodeName.parse(node.installed().settings["certname"].lower())
