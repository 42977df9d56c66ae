"""`localpuppet nodes`: lists the nodes on the bus, and their state."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.fleet.inventory.presence import believe
from localpuppet.node.cli import render
from localpuppet.node.cli.command import Command
from localpuppet.node.cli.render_node import cells
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.fleet.inventory.reading import InventoryAnswer
    from localpuppet.fleet.trust.signing import Verifier
    from localpuppet.fleet.wiring.inventory import InventoryWiring


@click.command(
    "nodes",
    cls=Command,
    exits={69: "the bus or the inventory is unreachable"},
)
@click.option("--watch", "following", is_flag=True, help="Keep running, and show every change.")
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="List nodes of this role (repeatable)."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line a change."
)
@click.pass_obj
def nodes_command(node: NodeWiring, following: bool, roles: tuple[str, ...], as_json: bool) -> None:
    """Show the nodes with a running agent, and their state.

    The table has the state, holds, last result and release of each node. If a node's key is not
    trusted here, its row says "not trusted" and nothing else.

    With --role, the table has the nodes whose last good run published one of these roles, also
    those without a running agent.

    Examples:
      localpuppet nodes
      localpuppet nodes --watch
      localpuppet nodes --role web              also nodes without a running agent
      localpuppet nodes --json | jq '.nodes[] | select(.holds != [])'
    """
    from localpuppet.fleet.wiring.fleet import FleetWiring
    from localpuppet.fleet.wiring.run_async import run

    if roles:
        if following:
            raise click.UsageError("--role and --watch exclude each other")
        _show_roles(node, roles, as_json=as_json)
        return
    fleet = FleetWiring(node)
    if following:
        from localpuppet.fleet.cli.nodes_watch import Board, follow

        board = Board(fleet.verifier, node.clock, as_json=as_json)
        run(follow(fleet.connect, board))
        return
    nodes = run(_nodes(fleet.connect, fleet.verifier))
    if as_json:
        render.emit_json({"schema": 1, "nodes": nodes})
    elif nodes:
        render.emit(_table(nodes, node.clock.now()))
    else:
        render.emit("no agent is running; 'localpuppet agent' on a node starts one")


def _show_roles(node: NodeWiring, roles: tuple[str, ...], *, as_json: bool) -> None:
    from localpuppet.fleet.wiring.inventory import InventoryWiring
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.node.cli import render_run

    found = run(_with_roles(InventoryWiring(node), roles))
    entries = found.answer
    if as_json:
        nodes = [
            {
                "node": entry.node,
                "roles": list(entry.roles),
                "release": entry.release,
                "at": entry.at,
                "run": entry.run,
            }
            for entry in entries
        ]
        told = {"revision": found.revision, "age": found.age}
        render.emit_json({"schema": 1, **told, "nodes": nodes})
    elif entries:
        rows = []
        for entry in entries:
            at = datetime.fromtimestamp(entry.at, UTC).isoformat()
            said = render_run.ago(at, node.clock.now())
            names = ",".join(map(one_line, entry.roles))
            rows.append((str(entry.node), names, said, one_line(entry.release or "")))
        render.emit(render.table(("NODE", "ROLES", "SAID", "RELEASE"), rows, spare=("SAID",)))
        if found.age >= 1:
            render.emit(f"as the inventory was {show_duration(found.age)} ago")
    else:
        render.emit("no node has such a role: see 'localpuppet inventory facts --summary role'")


async def _with_roles(
    inventory: "InventoryWiring", roles: tuple[str, ...]
) -> "InventoryAnswer[list[InventoryEntry]]":
    from localpuppet.fleet.inventory.summary import with_roles

    async with inventory.reader(render.QuietObserver().note) as view:
        return inventory.ask(
            view, lambda reader: with_roles(reader.entries({"role": roles}), roles)
        )


async def _nodes(
    connect: "Callable[[], Awaitable[KeyValue]]", verifier: "Verifier"
) -> list[dict[str, Any]]:
    from localpuppet.fleet.inventory import presence

    kv = await connect()
    try:
        return [
            believe(verifier, name, token)
            for name, token in sorted((await presence.nodes(kv)).items())
        ]
    finally:
        await kv.close()


def _table(nodes: list[dict[str, Any]], now: "datetime") -> str:
    from localpuppet.node.cli import render_run

    rows = []
    for node_status in nodes:
        node, state, outcome, app, about = cells(node_status)
        finished = (node_status.get("last_run") or {}).get("finished_at")
        when = render_run.ago(finished, now) if finished else ""
        rows.append((node, state, outcome, when, app, about))
    head = ("NODE", "STATE", "LAST RUN", "ENDED", "RELEASE", "ABOUT")
    return render.table(head, rows, spare=("ENDED", "ABOUT"))
