"""`localpuppet inventory`: the data that nodes publish after their runs; and `query`."""

import click

from localpuppet.node.cli.lazy_group import CommandGroup

MODULES = {
    "exports": "fleet.cli.inventory.exports",
    "facts": "fleet.cli.inventory.facts",
    "forget": "fleet.cli.inventory.forget",
    "publish": "fleet.cli.inventory.publish",
}


@click.group(cls=CommandGroup, sections={"Commands": MODULES})
def inventory_command() -> None:
    """Show and maintain what nodes publish about themselves.

    After each good run, a node publishes a signed entry over the bus: its facts, classes, roles,
    release and exported resources. Each node keeps a copy of all entries. 'localpuppet query'
    searches them.

    Examples:
      localpuppet inventory facts web01.example.com
      localpuppet inventory facts --summary os.family
      localpuppet inventory exports --type concat::fragment
      localpuppet inventory forget old01.example.com
    """
