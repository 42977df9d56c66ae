"""The other nodes on which a command acts: an argument, or `--node` beside another argument."""

from collections.abc import Sequence

import click

from localpuppet.node.cli.command import Decorator, option

node_option = option("-n --node nodes NODE", "Ask this node (repeatable).", multiple=True)


def nodes_argument(*, required: bool) -> Decorator:
    """Return the argument for nodes."""
    metavar = "NODE..." if required else "[NODE]..."
    return click.argument("nodes", nargs=-1, required=required, metavar=metavar)


def only_here(nodes: Sequence[str], **options: object) -> None:
    """Reject options that apply only to this node if other nodes are named.

    Raises:
        click.UsageError: Such an option is given.
    """
    given = [name for name, value in options.items() if value]
    if nodes and given:
        raise click.UsageError(
            f"{given[0].replace('_', '-')} works on this node only: leave out the other nodes"
        )
