"""`localpuppet publish`: tell the others of this node's last good run."""

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "publish",
    short_help="Tell the others of the last good run.",
    epilog="""\b
Examples:
  localpuppet publish          after the bus was away
  localpuppet publish --show   what the others hear
""",
)
@click.option("--show", is_flag=True, help="Print what would be told, as JSON; tell nobody.")
@click.pass_obj
def publish_command(node: NodeWiring, show: bool) -> None:
    """Bring this node's inventory entry to the bus: facts, roles and classes of the last good run.

    A running agent does so by itself. Without one, a run starts this command when it is over, if
    the settings name a bus.
    """
    from localpuppet.fleet.wiring.publishing import PublishingWiring
    from localpuppet.fleet.wiring.run_async import run

    telling = PublishingWiring(node)
    if show:
        entry = telling.outbox().entry()
        render.emit_json({"schema": 1, "entry": None if entry is None else entry.to_dict()})
        return
    news = run(telling.publish(render.QuietObserver().note))
    if news is None:
        render.emit("there is nothing to tell: no good whole run was made here yet")
    else:
        render.emit("told the others" if news else "the others know it already")
