"""The options of verbs that can ask other nodes: whom, and for how long to wait.

Apart from `asking`, so that a verb that asks nobody does not pay for the bus.
"""

from collections.abc import Callable, Sequence
from typing import Any

import click

from localpuppet.base.formats.times import parse_duration
from localpuppet.fleet.requests.lifetime import MAX_LIFETIME

PATIENCE = 20.0

Decorator = Callable[[Any], Any]


def node_option(*, required: bool) -> Decorator:
    """Return the option `--node`."""
    text = "Whom to ask; again for more." if required else "Ask this node; again for more."
    return click.option(
        "-n", "--node", "nodes", multiple=True, required=required, metavar="NODE", help=text
    )


def patience_option() -> Decorator:
    """Return the option `--timeout`, in seconds."""
    return click.option(
        "--timeout",
        "patience",
        metavar="TIME",
        callback=_patience,
        help="Wait so long for the replies, up to 5m.  [default: 20s]",
    )


def _patience(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float:
    seconds = PATIENCE if value is None else parse_duration(value, what="timeout")
    if seconds > MAX_LIFETIME:
        raise click.UsageError(f"--timeout must be at most {MAX_LIFETIME // 60}m")
    return seconds


def only_here(nodes: Sequence[str], **options: object) -> None:
    """Refuse options that mean something on this node only, together with `--node`.

    Raises:
        click.UsageError: One is given.
    """
    given = [name for name, value in options.items() if value]
    if nodes and given:
        raise click.UsageError(f"{given[0].replace('_', '-')} does not go with --node")
