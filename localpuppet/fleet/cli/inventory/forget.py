"""`localpuppet forget`: removes a node's entry from every inventory."""

import click

from localpuppet.base.formats.names import NodeName
from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "forget",
    short_help="Have all nodes forget a node's published entry.",
    epilog="""\b
Examples:
  localpuppet forget old01.example.com
""",
)
@click.argument("name", metavar="NODE")
@click.pass_obj
def forget_command(node: NodeWiring, name: str) -> None:
    """Have all nodes forget NODE: it is gone for good, or for now.

    Each node takes it out of its inventory if its own policy allows you to (action 'forget', which
    '*' does not mean). A good run of NODE brings it back, unless its key is revoked.
    """
    from localpuppet.fleet.wiring.publishing import PublishingWiring
    from localpuppet.fleet.wiring.run_async import run

    forgotten = NodeName.parse(name)
    run(PublishingWiring(node).forget(forgotten))
    render.emit(f"told all nodes to forget {forgotten}; each does if its policy allows 'forget'")
