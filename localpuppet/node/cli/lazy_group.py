"""Groups of commands that import a command's module only when the command is called."""

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from localpuppet.base.formats.names import suggest
from localpuppet.node.cli.command import EXITS, Command

MAX_WORD = 60


class CommandGroup(Command, click.Group):
    """A group of commands.

    Args:
        sections: Title in the help → command → module in `localpuppet`, in which the command is
            named `COMMAND_command`.
        arguments: Arguments for click.Group.
    """

    def __init__(
        self,
        *,
        sections: Mapping[str, Mapping[str, str]],
        **arguments: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(exits=dict.fromkeys(EXITS, ""), no_args_is_help=True, **arguments)
        self.sections = sections
        self._modules = {name: file for part in sections.values() for name, file in part.items()}

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
        """Return the names of the commands, in the order of the help."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name."""
        if cmd_name not in self._modules:
            return None
        module = import_module(f"localpuppet.{self._modules[cmd_name]}")
        if not gc.isenabled():  # see `localpuppet.__main__`
            gc.freeze()
            gc.enable()
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their titles, and then the options."""
        width = max(map(len, self._modules))
        for title, names in self.sections.items():
            subcommands = {name: self.get_command(ctx, name) for name in names}
            rows = [
                (name.ljust(width), command.get_short_help_str())
                for name, command in subcommands.items()
                if command is not None and not command.hidden
            ]
            with formatter.section(title):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, or suggest up to three."""
        word = args[0]
        if word not in self._modules and not word.startswith("-"):
            below = [path for path in self._paths_below(ctx) if path.endswith(f" {word}")]
            hint = suggest(below[0], below) if below else suggest(word, list(self._modules))
            raise click.UsageError(f"unknown command {word[:MAX_WORD]!r}{hint and ': '}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def _paths_below(self, ctx: click.Context) -> list[str]:
        """Return the commands of the groups in this one, each with its group's name."""
        groups = {name: self.get_command(ctx, name) for name in self._modules}
        return [
            f"{name} {below}"
            for name, group in groups.items()
            if isinstance(group, click.Group)
            for below in group.list_commands(ctx)
        ]
