"""`localpuppet exports`: lists exported resources, and the policy lines that this node lacks."""

from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.wiring.settings import peers
from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.fleet.exports.held import RefusedExports
    from localpuppet.fleet.exports.resource import Offer


@click.command(
    "exports",
    short_help="Show which resources nodes export, or the lines that a policy lacks.",
    epilog="""\b
Examples:
  localpuppet exports
  localpuppet exports web01.example.com --json | jq '.exports[].parameters'
  localpuppet exports --type concat::fragment --title haproxy_web01
  localpuppet exports --policy >> /etc/puppet/policies/collect.policy
""",
)
@click.argument("name", metavar="[NODE]", required=False)
@click.option("--type", "kind", metavar="TYPE", help="Only of this type (concat::fragment).")
@click.option("--title", metavar="TITLE", help="Only with this title.")
@click.option(
    "--policy",
    "lines",
    is_flag=True,
    help="Print the lines that policies/collect.policy lacks to take them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all parameters.")
@click.pass_obj
def exports_command(
    node: NodeWiring,
    name: str | None,
    kind: str | None,
    title: str | None,
    *,
    lines: bool,
    as_json: bool,
) -> None:
    """Show the resources that the last good run of each node, or of NODE, exports.

    Exports count only with the node's signature, and stay until the node exports something else or
    is forgotten. An unreachable inventory is an error, never an empty list.

    With --policy, localpuppet prints lines and allows nothing. Types whose every resource is code
    or a right on this node have a line for each title, and a mark. What the collectors of the
    newest run would get by the current policy goes to standard error.
    """
    from localpuppet.fleet.exports.resource import named_type
    from localpuppet.fleet.wiring.run_async import run

    kind = None if kind is None else named_type(kind)
    owner = None if name is None else NodeName.parse(name)
    offers, refused = run(_held(node, owner, kind))
    offers = [one for one in offers if title in (None, one.resource.title)]
    if lines:
        _propose(node, offers, as_json=as_json)
    elif as_json:
        found = [{"node": one.node, **one.resource.to_dict()} for one in offers]
        problems = [{"node": one.node, "reason": one.reason} for one in refused]
        render.emit_json({"schema": 1, "exports": found, "refused": problems})
    else:
        _show(offers, refused)


def _show(offers: "list[Offer]", refused: "list[RefusedExports]") -> None:
    if offers:
        rows = [
            (one.node, one.resource.type, render.user_text(one.resource.title)) for one in offers
        ]
        render.emit(render.table(("NODE", "TYPE", "TITLE"), rows, spare=()))
    else:
        render.emit("no node exports that")
    for problem in refused:
        render.QuietObserver().note(
            f"warning: what {problem.node} exports since its last run does not count:"
            f" {problem.reason}"
        )


def _propose(node: NodeWiring, offers: "list[Offer]", *, as_json: bool) -> None:
    from localpuppet.fleet.cli.record.collected import would_take
    from localpuppet.fleet.exports.collecting import read_collect_policy
    from localpuppet.fleet.exports.proposing import proposed
    from localpuppet.fleet.wiring.exports import ExportsWiring
    from localpuppet.fleet.wiring.fleet import FleetWiring

    name = FleetWiring(node).name
    policy = read_collect_policy(peers(node).collect_policy)
    found = proposed(offers, me=name, policy=policy)
    asked = ExportsWiring(node).would_take(name)
    if asked and not as_json:  # on stderr: a user may redirect the lines into the file
        render.say(would_take(asked), err=True)
    if as_json:
        collectors = [one.to_dict() for one in asked]
        render.emit_json({"schema": 1, "lines": found, "collectors": collectors})
    elif found:
        render.emit("\n".join(found))
    else:
        render.QuietObserver().note(f"{peers(node).collect_policy} lacks nothing")


async def _held(
    node: NodeWiring, name: NodeName | None, kind: str | None
) -> "tuple[list[Offer], list[RefusedExports]]":
    from localpuppet.fleet.wiring.exports import ExportsWiring
    from localpuppet.fleet.wiring.inventory import InventoryWiring

    inventory, held = InventoryWiring(node), ExportsWiring(node).held()

    def look(reader: Any) -> "list[Offer]":  # noqa: ANN401 - an InventoryReader
        if name is not None and reader.entry(name) is None:
            raise InvalidInputError(
                f"{name} is not in the inventory",
                hint="'localpuppet nodes' lists who is on the bus",
            )
        return list(held.find(node=name, kind=kind))

    try:
        async with inventory.reader(render.QuietObserver().note) as view:
            offers = inventory.ask(view, look).answer
            refused = [one for one in held.refused().values() if name in (None, one.node)]
    finally:
        held.close()
    return offers, refused
