"""`localpuppet nodes`: who is on the bus, and how they are."""

from typing import TYPE_CHECKING, Any

import click

from localpuppet.cli import render
from localpuppet.cli.render_node import cells
from localpuppet.inventory.presence import believe
from localpuppet.wiring.node import Parts

if TYPE_CHECKING:
    from localpuppet.wiring.fleet import FleetParts


@click.command(
    "nodes",
    short_help="Show the nodes whose agents are there, and how they are.",
    epilog="""\b
Examples:
  localpuppet nodes
  localpuppet nodes --watch
  localpuppet nodes --json | jq '.nodes[] | select(.holds != [])'
""",
)
@click.option("--watch", "following", is_flag=True, help="Go on, and show every change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line each.")
@click.pass_obj
def nodes_command(parts: Parts, following: bool, as_json: bool) -> None:
    """Show the nodes whose agents are there: what they do, holds, the last outcome, the release.

    What a node says counts only with its signature: one whose key is not trusted here is shown as
    "not trusted". A bus that cannot be asked is an error, never an empty list.
    """
    from localpuppet.cli.run_async import run
    from localpuppet.wiring.fleet import FleetParts

    fleet = FleetParts(parts)
    if following:
        from localpuppet.cli.nodes_watch import follow

        run(follow(fleet, as_json=as_json))
        return
    found = run(_nodes(fleet))
    if as_json:
        render.emit_json({"schema": 1, "nodes": found})
    elif found:
        render.emit(_table(parts, found))
    else:
        render.emit("no agent is there; 'localpuppet agent' on a node starts one")


async def _nodes(fleet: "FleetParts") -> list[dict[str, Any]]:
    from localpuppet.inventory import presence

    kv = await fleet.connect()
    try:
        return [
            believe(fleet.verifier, name, token)
            for name, token in sorted((await presence.nodes(kv)).items())
        ]
    finally:
        await kv.close()


def _table(parts: Parts, found: list[dict[str, Any]]) -> str:
    from localpuppet.cli import render_run

    now = parts.clock.now()
    rows = []
    for said in found:
        node, state, outcome, app, about = cells(said)
        finished = (said.get("last") or {}).get("finished_at")
        when = render_run.ago(finished, now) if finished else ""
        rows.append((node, state, outcome, when, app, about))
    head = ("NODE", "STATE", "LAST RUN", "ENDED", "RELEASE", "ABOUT")
    return render.table(head, rows, width=render.columns())
