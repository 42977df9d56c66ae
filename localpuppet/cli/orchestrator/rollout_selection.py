"""The options of `localpuppet rollout run` that say what: which nodes, in which groups."""

from typing import TYPE_CHECKING, Any

import click

from localpuppet.cli import render
from localpuppet.cli.orchestrator.site_options import names_in, read_plan, site_options
from localpuppet.errors import UnavailableError
from localpuppet.formats.names import NodeName
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.orchestrator.rollout.selecting import Selected

_WHAT = (
    site_options(required=False),
    click.option("--query", metavar="QUERY", help="The nodes that this finds in the inventory."),
    click.option(
        "--order",
        type=click.Choice(["site", "none"]),
        default="site",
        show_default=True,
        help="none: without a site, the nodes of --query and --nodes are one group.",
    ),
    click.option(
        "--failed-of",
        "parent",
        metavar="ID",
        help="Only what did not succeed in ID, with its options.",
    ),
)


def what_options(command: Any) -> Any:  # noqa: ANN401
    """Add the options to a command."""
    for option in reversed(_WHAT):
        command = option(command)
    return command


def selected(
    node: NodeWiring, given: dict[str, Any], again: frozenset[NodeName] | None
) -> "Selected":
    """Return what the options select.

    Args:
        node: The parts of the node.
        given: The options.
        again: Only these nodes, which did not succeed before; `None` for all.

    Raises:
        InvalidInputError: The site is refused, or the selection matches no node.
        UnavailableError: The inventory could not be asked.
    """
    from localpuppet.orchestrator.rollout import selecting

    source, query = given["source"], given["query"]
    if given["order"] == "none":
        if source is not None or given["instances"]:
            raise click.UsageError("--order none does not go with --site and --instance")
        if query is None and not given["nodes"] and again is None:
            raise click.UsageError("--order none needs --query or --nodes")
        nodes = _found(node, query, given["nodes"], again)
        title = f"the answer to {query}" if query else "nodes without an order"
        return selecting.one_group(nodes, title=title)
    if source is None:
        raise click.UsageError("say --site FILE, or --order none with --query or --nodes")
    if query is not None:
        raise click.UsageError("--query goes with --order none")
    found = selecting.of_plan(read_plan(node, source, given["instances"], given["nodes"]))
    return found if again is None else selecting.only(found, again)


def _found(
    node: NodeWiring, query: str | None, nodes: tuple[str, ...], again: "frozenset[NodeName] | None"
) -> "frozenset[NodeName]":
    """Return the nodes that all of these name."""
    found = again
    if query is not None:
        answer = frozenset(_answer(node, query))
        found = answer if found is None else found & answer
    if nodes:
        named = frozenset(names_in(nodes))
        found = named if found is None else found & named
    return found or frozenset()


def _answer(node: NodeWiring, query: str) -> "list[NodeName]":
    from localpuppet.inventory.query.functions import Question
    from localpuppet.inventory.reading import CouldNotAsk
    from localpuppet.wiring.inventory import InventoryWiring
    from localpuppet.wiring.run_async import run

    calls = InventoryWiring(node).calls(render.Silent().note)
    found = run(calls.ask(Question.of("query", [query])))
    if isinstance(found, CouldNotAsk):
        raise UnavailableError(f"could not be asked: {found.reason}", where="inventory")
    return [NodeName.parse(name) for name in found.answer.names]
