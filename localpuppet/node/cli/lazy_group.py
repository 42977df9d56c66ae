"""Groups of verbs that import a verb's module only when the verb is called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from localpuppet.base.formats.names import did_you_mean

SENTENCE = 200


class Verbs(click.Group):
    """A group of verbs.

    Args:
        verbs: Verb → module in `localpuppet`; its command is named `VERB_command`.
        arguments: Arguments for click.Group.
    """

    def __init__(self, *, verbs: Mapping[str, str], **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(**arguments)
        self._verbs = verbs

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what click returns
        """Run the command; if an optional library is missing, name its extra."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            from localpuppet.base.machine.extras import explain_missing

            command = f"{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip()
            explained = explain_missing(error, where=command)
            if explained is None:
                raise
            raise explained from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return sorted(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command for a verb."""
        if cmd_name not in self._verbs:
            return None
        module = import_module(f"localpuppet.{self._verbs[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the whole short help of each verb, which click would cut."""
        rows = []
        for verb in self.list_commands(ctx):
            command = self.get_command(ctx, verb)
            if command is not None and not command.hidden:
                rows.append((verb, command.get_short_help_str(limit=SENTENCE)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb, or suggest a similar one."""
        if args[0] not in self._verbs and not args[0].startswith("-"):
            hint = did_you_mean(args[0], list(self._verbs))
            raise click.UsageError(f"unknown command {args[0][:60]!r} ({hint})", ctx)
        return super().resolve_command(ctx, args)
