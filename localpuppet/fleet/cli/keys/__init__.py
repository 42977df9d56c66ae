"""`localpuppet keys`: this node's key, and the keys that it trusts."""

import click

from localpuppet.node.cli.lazy_group import CommandGroup

MODULES = {
    "init": "fleet.cli.keys.own",
    "list": "fleet.cli.keys.trusted",
    "revoke": "fleet.cli.keys.trusted",
    "show": "fleet.cli.keys.own",
    "trust": "fleet.cli.keys.trusted",
}


@click.group(cls=CommandGroup, sections={"Commands": MODULES})
def keys_command() -> None:
    """Make this node's key; pin the keys of others.

    Nodes and operators sign triggers, requests and replies. A node trusts pinned keys and, if
    identity.ca is set in localpuppet.yaml, certificates of that CA.

    Examples:
      localpuppet keys init                          on web01: make its key
      localpuppet keys show > web01.pem              on web01: the file is public
      localpuppet keys trust web01.example.com web01.pem       on another node
      ssh web01 localpuppet keys show | localpuppet keys trust web01.example.com -
    """
