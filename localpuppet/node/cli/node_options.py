"""The option of commands that can ask other nodes, and what does not go with it."""

from collections.abc import Callable, Sequence
from typing import Any

import click

Decorator = Callable[[Any], Any]


def node_option(*, required: bool) -> Decorator:
    """Return the option `--node`."""
    text = "Whom to ask; again for more." if required else "Ask this node; again for more."
    return click.option(
        "-n", "--node", "nodes", multiple=True, required=required, metavar="NODE", help=text
    )


def only_here(nodes: Sequence[str], **options: object) -> None:
    """Refuse options that mean something on this node only, together with `--node`.

    Raises:
        click.UsageError: One is given.
    """
    given = [name for name, value in options.items() if value]
    if nodes and given:
        raise click.UsageError(f"{given[0].replace('_', '-')} does not go with --node")
