"""`localpuppet inventory forget`: removes a node's entry from every inventory."""

import click

from localpuppet.base.formats.names import NodeName
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command
from localpuppet.node.cli.confirming import confirm, confirmation_options


@command("forget", exits={1: "you answered no", 69: "the bus is unreachable"})
@click.argument("name", metavar="NODE")
@confirmation_options
@click.pass_obj
def forget_command(node: NodeApp, name: str, dry_run: bool, yes: bool) -> None:
    """Remove a node's entry from the inventory of all nodes.

    Each node removes the entry if its own policy allows you `forget` ('*' does not include it). A
    later good run of NODE adds an entry again, unless its key is revoked.

    Examples:
      localpuppet inventory forget old01.example.com
      localpuppet inventory forget old01.example.com --yes     in a script
    """
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.fleet.wiring.publishing import PublishingWiring

    forgotten = NodeName.parse(name)
    step = f"remove the entry of {forgotten} from the inventory of all nodes"
    if dry_run:
        render.emit(f"would {step}")
        return
    confirm(step, yes=yes)
    run(PublishingWiring(node).forget(forgotten))
    render.emit(f"sent: each node removes the entry of {forgotten} if its policy allows 'forget'")
