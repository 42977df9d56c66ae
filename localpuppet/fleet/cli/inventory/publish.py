"""`localpuppet publish`: publishes this node's last good run."""

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "publish",
    short_help="Publish the last good run to other nodes.",
    epilog="""\b
Examples:
  localpuppet publish          after an outage of the bus
  localpuppet publish --show   what other nodes receive
""",
)
@click.option("--show", is_flag=True, help="Print the entry as JSON; publish nothing.")
@click.pass_obj
def publish_command(node: NodeWiring, show: bool) -> None:
    """Publish this node's inventory entry: facts, roles and classes of the last good run.

    A running agent does so by itself. Without an agent, a finished run starts this command if the
    settings name a bus.
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
