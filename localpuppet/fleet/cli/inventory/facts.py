"""`localpuppet inventory facts`: shows a node's facts, and the values of a fact."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.fleet.inventory.reading import InventoryAnswer
    from localpuppet.fleet.wiring.inventory import InventoryWiring

T = TypeVar("T")


@command("facts", exits={69: "the inventory is unreachable or too old"})
@click.argument("name", metavar="[NODE]", required=False)
@option("--summary path FACT", "Count nodes by the value of this fact.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def facts_command(node: NodeApp, name: str | None, path: str | None, as_json: bool) -> None:
    """Show the facts of a node, or the values of a fact.

    The facts are from the last good run of NODE. They count only with the node's signature. If this
    node's copy of the inventory is too old (inventory.max_stale), the command fails.

    Examples:
      localpuppet inventory facts web01.example.com
      localpuppet inventory facts web01.example.com --json | jq .entry.facts.os
      localpuppet inventory facts --summary os.family      count nodes by value
      localpuppet inventory facts --summary role
    """
    from localpuppet.fleet.wiring.inventory import InventoryWiring

    if (name is None) == (path is None):
        raise click.UsageError("name a node, or a fact with --summary")
    inventory = InventoryWiring(node)
    if name is not None:
        _show(node, inventory, NodeName.parse(name), as_json=as_json)
    elif path is not None:
        _summarise(inventory, path, as_json=as_json)


def _show(node: NodeApp, inventory: "InventoryWiring", name: NodeName, *, as_json: bool) -> None:
    from localpuppet.fleet.inventory.summary import lines
    from localpuppet.fleet.wiring.fleet import run

    answer, refused = run(read_entry(inventory, name))
    entry = answer.answer
    if entry is None:
        raise InvalidInputError(
            f"{name} is not in the inventory" + (f": {refused}" if refused else ""),
            hint="its first successful run adds it; 'localpuppet nodes' lists the running agents",
        )
    if as_json:
        document = {"entry": entry.to_dict(), "refused": refused}
        render.emit_json({"schema": 1, **_freshness(answer), **document})
        return
    age = render_run.ago(datetime.fromtimestamp(entry.at, UTC).isoformat(), node.clock.now())
    head = [
        ("Node", str(entry.node)),
        ("Said", f"{age}, after run {entry.run}"),
        ("Release", one_line(entry.release or "")),
        ("Roles", ", ".join(map(one_line, entry.roles)) or "none"),
    ]
    if refused:
        head.append(("Since then", f"what it says does not count: {refused}"))
    render.emit(render.pairs(head))
    rows = [(one_line(path), one_line(text)) for path, text in lines(entry.facts)]
    render.emit(render.table(("FACT", "VALUE"), rows, spare=()))


def _summarise(inventory: "InventoryWiring", path: str, *, as_json: bool) -> None:
    from localpuppet.fleet.wiring.fleet import run

    answer = run(_counts(inventory, path))
    counts = answer.answer
    if as_json:
        values = [{"value": value, "nodes": number} for value, number in counts]
        render.emit_json({"schema": 1, **_freshness(answer), "fact": path, "values": values})
    elif counts:
        rows = [(str(number), one_line(value)) for value, number in counts]
        render.emit(render.table(("NODES", "VALUE"), rows, spare=()))
    else:
        render.emit("the inventory is empty; a node's first successful run adds it")


async def read_entry(
    inventory: "InventoryWiring", name: NodeName
) -> tuple["InventoryAnswer[InventoryEntry | None]", str]:
    """Return a node's entry, and why a newer one was rejected; empty if none was."""
    async with inventory.reader(render.QuietObserver().note) as view:
        answer = inventory.ask(view, lambda reader: reader.entry(name))
        refused = {refusal.node: refusal.reason for refusal in view.refused()}
    return answer, refused.get(name, "")


async def _counts(
    inventory: "InventoryWiring", path: str
) -> "InventoryAnswer[list[tuple[str, int]]]":
    from localpuppet.fleet.inventory.summary import counts

    async with inventory.reader(render.QuietObserver().note) as view:
        return inventory.ask(view, lambda reader: counts(reader, path))


def _freshness(answer: "InventoryAnswer[T]") -> dict[str, int | float]:
    """Return the bus's revision that an answer is from, and its age in seconds."""
    return {"revision": answer.revision, "age": answer.age}
