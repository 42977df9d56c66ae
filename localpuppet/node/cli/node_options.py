"""The option `--node` of commands that can ask other nodes, and its exclusions."""

from collections.abc import Callable, Sequence
from typing import Any

import click

Decorator = Callable[[Any], Any]


def node_option(*, required: bool) -> Decorator:
    """Return the option `--node`."""
    text = "The node to ask (repeatable)." if required else "Ask this node (repeatable)."
    return click.option(
        "-n", "--node", "nodes", multiple=True, required=required, metavar="NODE", help=text
    )


def only_here(nodes: Sequence[str], **options: object) -> None:
    """Reject options that apply only to this node if `--node` is given.

    Raises:
        click.UsageError: Such an option is given.
    """
    given = [name for name, value in options.items() if value]
    if nodes and given:
        raise click.UsageError(f"{given[0].replace('_', '-')} does not go with --node")
