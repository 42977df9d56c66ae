"""Verbs that keep what stands behind `--`: it is another program's, and not ours to parse."""

from typing import Any

import click

REST = "localpuppet.rest"


class RestCommand(click.Command):
    """Puts the words behind `--` into `ctx.meta[REST]`.

    Args:
        rest: What they are called in the usage line.
        arguments: What click.Command takes.
    """

    def __init__(self, *, rest: str, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(**arguments)
        self._rest = rest

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before `--`."""
        if "--" in args:
            index = args.index("--")
            ctx.meta[REST] = tuple(args[index + 1 :])
            args = args[:index]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), f"[-- {self._rest}]"]
