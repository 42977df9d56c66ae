"""`localpuppet inventory publish`: publishes this node's last good run."""

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag


@command("publish", exits={1: "", 69: "the bus is unreachable"})
@flag("--dry-run", "Print the entry as JSON; publish nothing.")
@click.pass_obj
def publish_command(node: NodeApp, dry_run: bool) -> None:
    """Publish this node's inventory entry and history.

    The entry has the facts, roles, classes and exported resources of the last good run; the history
    has a summary of each run. A running agent publishes both after each run. Without an agent, the
    run publishes them if localpuppet.yaml names a bus. You need this command only after an outage.

    Examples:
      localpuppet inventory publish             after an outage of the bus
      localpuppet inventory publish --dry-run   show what other nodes receive
    """
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.fleet.wiring.publishing import PublishingWiring

    telling = PublishingWiring(node)
    if dry_run:
        entry = telling.outbox().entry()
        render.emit_json({"schema": 1, "entry": None if entry is None else entry.to_dict()})
        return
    news = run(telling.publish(render.QuietObserver().note))
    if news is None:
        render.emit("no entry to publish: this node has no complete successful run yet")
    else:
        render.emit("published" if news else "published before: nothing changed")
