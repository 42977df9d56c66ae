"""`localpuppet inventory exports`: lists exported resources, and missing policy lines."""

from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.wiring.fleet import peers
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from localpuppet.fleet.exports.held import RefusedExports
    from localpuppet.fleet.exports.resource import Offer


@command("exports", exits={69: "the inventory is unreachable"})
@click.argument("name", metavar="[NODE]", required=False)
@option("--type kind TYPE", "Only of this type (concat::fragment).")
@option("--title TITLE", "Only with this title.")
@flag(
    "--policy lines", "Print the missing lines of policies/collect.policy that would accept them."
)
@flag("--json as_json", "Print JSON, with all parameters.")
@click.pass_obj
def exports_command(
    node: NodeApp,
    name: str | None,
    kind: str | None,
    title: str | None,
    *,
    lines: bool,
    as_json: bool,
) -> None:
    """Show the exported resources of nodes.

    They are from the last good run of each node, or of NODE. They count only with the node's
    signature, and remain until the node exports something else or is forgotten.

    With --policy, the command prints lines and writes nothing. Resource types that always grant
    code or a right on this node get one line for each title, with a mark. The resources that the
    current policy accepts are listed on standard error.

    Examples:
      localpuppet inventory exports
      localpuppet inventory exports web01.example.com --json | jq .exports
      localpuppet inventory exports --type concat::fragment --title haproxy_web01
      localpuppet inventory exports --policy >> /etc/puppet/policies/collect.policy
    """
    from localpuppet.fleet.exports.resource import named_type
    from localpuppet.fleet.wiring.fleet import run

    kind = None if kind is None else named_type(kind)
    owner = None if name is None else NodeName.parse(name)
    offers, refused = run(_held(node, owner, kind))
    offers = [offer for offer in offers if title in (None, offer.resource.title)]
    if lines:
        _propose(node, offers, as_json=as_json)
    elif as_json:
        rows = [{"node": offer.node, **offer.resource.to_dict()} for offer in offers]
        problems = [{"node": refusal.node, "reason": refusal.reason} for refusal in refused]
        render.emit_json({"schema": 1, "exports": rows, "refused": problems})
    else:
        _show(offers, refused)


def _show(offers: "list[Offer]", refused: "list[RefusedExports]") -> None:
    if offers:
        rows = [
            (offer.node, offer.resource.type, render.user_text(offer.resource.title))
            for offer in offers
        ]
        render.emit(render.table(("NODE", "TYPE", "TITLE"), rows, spare=()))
    else:
        render.emit("no node exports that")
    for problem in refused:
        render.QuietObserver().note(
            f"warning: ignoring exports of {problem.node} since its last run: {problem.reason}"
        )


def _propose(node: NodeApp, offers: "list[Offer]", *, as_json: bool) -> None:
    from localpuppet.fleet.cli.record.collected import would_take
    from localpuppet.fleet.exports.collecting import read_collect_policy
    from localpuppet.fleet.exports.policy import proposed
    from localpuppet.fleet.wiring.exports import ExportsWiring
    from localpuppet.fleet.wiring.fleet import FleetWiring

    name = FleetWiring(node).name
    policy = read_collect_policy(peers(node).collect_policy)
    proposal = proposed(offers, me=name, policy=policy)
    asked = ExportsWiring(node).would_take(name)
    if asked and not as_json:  # on stderr: a user may redirect the lines into the file
        render.say(would_take(asked), err=True)
    if as_json:
        collectors = [collector.to_dict() for collector in asked]
        render.emit_json({"schema": 1, "lines": proposal, "collectors": collectors})
    elif proposal:
        render.emit("\n".join(proposal))
    else:
        render.QuietObserver().note(f"{peers(node).collect_policy} lacks nothing")


async def _held(
    node: NodeApp, name: NodeName | None, kind: str | None
) -> "tuple[list[Offer], list[RefusedExports]]":
    from localpuppet.fleet.wiring.exports import ExportsWiring
    from localpuppet.fleet.wiring.inventory import InventoryWiring

    inventory, held = InventoryWiring(node), ExportsWiring(node).held()

    def look(reader: Any) -> "list[Offer]":  # noqa: ANN401 - an InventoryReader
        if name is not None and reader.entry(name) is None:
            raise InvalidInputError(
                f"{name} is not in the inventory",
                hint="'localpuppet nodes' lists the nodes on the bus",
            )
        return list(held.find(node=name, kind=kind))

    try:
        async with inventory.reader(render.QuietObserver().note) as view:
            offers = inventory.ask(view, look).answer
            refused = [
                refusal for refusal in held.refused().values() if name in (None, refusal.node)
            ]
    finally:
        held.close()
    return offers, refused
