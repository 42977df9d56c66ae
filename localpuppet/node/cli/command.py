"""Commands, and groups of them, with one form of help; confirmations of what is hard to undo.

- The first line of a command's docstring is its short help. The last paragraph may be `Examples:`.
- click keeps the lines of a paragraph of the docstring that has indented lines.
- Examples are lines of commands; two or more blanks separate a command from its comment.

Example:
    @command("run", exits={69: ""})
"""

import gc
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.formats.names import suggest
from localpuppet.node.cli import render

if TYPE_CHECKING:
    from localpuppet.node.node_ports import NodeSelection

Decorator = Callable[[Any], Any]

# Exit code → what it means, if a command does not describe it.
EXITS = {
    0: "success",
    1: "the run or a file operation failed",
    2: "the command line, a file or a setting is invalid",
    3: "a tag moved, or a digest or signature is wrong",
    4: "with preview --exit-code: catalogs differ",
    5: "with preview --exit-code: compiling cannot show the effect of a change",
    69: "a server, the bus or a node does not answer",
    70: "a bug in localpuppet",
    75: "another process is busy, or the node is on hold: try again later",
    130: "stopped by ^C",
}
OPTIONS = "Options"
TIME = "TIME is in seconds, or has units (s, m, h, d, w): 90, 30m, 1h30m, 3d."
SPLIT_TIME = r"[0-9]+ (sec|min|hour|day|week|[smhdw]\b)[a-z]*|[0-9]+[smhdw] [0-9]+[smhdw]"
_titles: dict[click.Parameter, str] = {}


def options(title: str, *declared: Decorator) -> Decorator:
    """Return a decorator that adds options to a command, under a title of its help."""

    def add(function: Any) -> Any:  # noqa: ANN401 - what click decorates
        for option in reversed(declared):
            option(function)
            _titles[function.__click_params__[-1]] = title
        return function

    return add


JSON = "localpuppet.json"  # key of a context's `meta`: --json was before the command


def _set_root(ctx: click.Context, _parameter: click.Parameter, root: str | None) -> None:
    if root is not None and ctx.obj is not None:
        ctx.find_root().params["root"] = root
        ctx.obj = ctx.obj.at(root)


def _set_color(ctx: click.Context, _parameter: click.Parameter, color: str | None) -> None:
    if color is not None:
        render.COLOR.set(color)
        ctx.color = render.use_color(color, sys.stdout)


class Option(click.Option):
    """An option, whose help is one line: click would load `inspect` to clean it."""

    def __init__(self, *words: Any, help: str | None = None, **attributes: Any) -> None:  # noqa: ANN401
        super().__init__(*words, **attributes)
        self.help = help


def _show_help(ctx: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


# click's own would look for a translation.
HELP = Option(
    ["-h", "--help", "_help"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_help,
    help="Show this message and exit.",
)
COLORS = click.Choice(["auto", "always", "never"])
# Options of the program that also work behind its commands.
ANYWHERE = (
    click.Option(["--root"], hidden=True, expose_value=False, callback=_set_root),
    click.Option(["--color"], hidden=True, expose_value=False, callback=_set_color, type=COLORS),
)


def _note_renamed(old: str, new: str) -> None:
    render.note(f"'{old}' is now '{new}', and ends with version 0.2")


NONE: Mapping[str, str] = MappingProxyType({})


class Command(click.Command):
    """A command with examples and exit codes.

    Args:
        exits: Exit code → meaning; empty text takes it from `EXITS`. 0 and 2 need no entry.
        renamed: Old name of an option or subcommand, which prints a note → the words that it means;
            an argument has no name, so that the option's value takes its place.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401
        exits: Mapping[int, str] | None = None,
        renamed: Mapping[str, str] = NONE,
        **named: Any,  # noqa: ANN401
    ) -> None:
        self._renamed = renamed
        super().__init__(*arguments, **named)
        self.add_help_option = False  # see `HELP`
        text, _, examples = _unindented(self.help or "").partition("\n\nExamples:\n")
        self.examples = "\n".join(line[2:] for line in examples.splitlines())
        paragraphs = text.split("\n\n")
        self.help = "\n\n".join(
            f"\b\n{paragraph}" if "\n " in paragraph else paragraph for paragraph in paragraphs
        )
        codes = {0: "", 2: "", **(exits or {})}
        self.exit_codes = {code: codes[code] or EXITS[code] for code in sorted(codes)}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; below the top also the hidden ones that work on both sides."""
        return [*super().get_params(ctx), HELP, *(ANYWHERE if ctx.parent is not None else ())]

    def option_groups(self, ctx: click.Context) -> list[tuple[str, list[click.Option]]]:
        """Return the visible options under their titles; those without a title are the last."""
        groups: dict[str, list[click.Option]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and not option.hidden:
                groups.setdefault(_titles.get(option, OPTIONS), []).append(option)
        return sorted(groups.items(), key=lambda group: group[0] == OPTIONS)

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence of the help, never cut."""
        return (self.help or "").partition("\n")[0].removesuffix(".")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an error names this command."""
        if ctx.meta.get(JSON) and not isinstance(self, click.Group):
            if not any("--json" in param.opts for param in self.params):
                raise click.UsageError("this command has no --json", ctx)
            args = ["--json", *args]
        args = self._with_new_options(args)
        words = [*args]
        self._refuse_split_times(ctx, words)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            extra = re.search(r"unexpected extra arguments? \((.+)\)", error.message)
            first = extra[1].partition(" ")[0] if extra else ""
            text = " ".join(words[words.index(first) - 1 :]) if first in words else ""
            if re.search(r"[=<>~\[]", text):
                raise click.UsageError(f"quote the query: '{text}'", ctx) from error
            raise

    def _with_new_options(self, args: Sequence[str]) -> list[str]:
        """Return the words with options by their present names; say so of an earlier one."""
        end = args.index("--") if "--" in args else len(args)
        words: list[str] = []
        for place, word in enumerate(args):
            old, sign, value = word.partition("=")
            new = self._renamed.get(old) if old.startswith("-") and place < end else None
            if new is None:
                words.append(word)
                continue
            _note_renamed(old, new)
            words += [new + sign + value] if new.startswith("-") else [value] if sign else []
        return words

    def _refuse_split_times(self, ctx: click.Context, words: Sequence[str]) -> None:
        """Reject `--timeout 10 minutes`: the unit would be another argument."""
        listed = (option.opts for option in self.get_params(ctx) if option.metavar == "TIME")
        names = {name for opts in listed for name in opts}
        for name, number, unit in zip(words, words[1:], words[2:], strict=False):
            if name in names and re.fullmatch(SPLIT_TIME, f"{number} {unit}"):
                joined = number + (unit if unit[0].isdecimal() else unit[0])
                raise click.UsageError(f"{name}: a time is one word: {joined}", ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their titles."""
        groups = self.option_groups(ctx)
        for title, listed in groups:
            records = [option.get_help_record(ctx) for option in listed]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record])
        if any(option.metavar == "TIME" for _, listed in groups for option in listed):
            formatter.write_paragraph()
            formatter.write_text(TIME)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and exit codes."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples.splitlines():
                    formatter.write(f"{' ' * formatter.current_indent}{line}".rstrip() + "\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in self.exit_codes.items()])


def _unindented(text: str) -> str:
    """Return a docstring of a function as Python 3.13 keeps it, without its indentation."""
    return (text if sys.version_info >= (3, 13) else text.replace("\n    ", "\n")).strip()


def command(name: str, form: type[Command] = Command, **attributes: Any) -> Decorator:  # noqa: ANN401
    """Return the decorator that makes a function a command.

    Args:
        attributes: Its exit codes (`exits`), and arguments for `click.command`.
    """
    return click.command(name, form, **attributes)


def option(words: str, text: str = "", **attributes: Any) -> Decorator:  # noqa: ANN401
    """Return the decorator that adds an option.

    Args:
        words: Its names, and perhaps the name of the parameter and, in capitals, of the value:
            `-o --output FILE`, `--type kind TYPE`.
    """
    names: list[str] = []
    values: list[str] = []
    for part in words.split():
        is_value = not part.startswith("-") and part != part.lower()
        (values if is_value else names).append(part)
    if values:
        attributes["metavar"] = values[0]
    return click.option(*names, cls=Option, help=text or None, **attributes)


def flag(words: str, text: str, **attributes: Any) -> Decorator:  # noqa: ANN401
    """Return the decorator that adds an option without a value; see `option`."""
    return option(words, text, is_flag=True, **attributes)


def path_type() -> click.Path:
    """Return the type of a file or directory, which may be missing."""
    # No constant: making one loads `locale`, which no start should pay for.
    return click.Path(path_type=Path)


def limit_option(rows: str, *, default: int | None = None) -> Decorator:
    """Return the option for the most rows of an output."""
    return option(
        "-n --limit N",
        f"Show at most N {rows}.",
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
    )


query_option = option("--query QUERY", "Nodes that match a query: see 'localpuppet query --help'.")
role_option = option("--role roles ROLE", "Nodes with this role (repeatable).", multiple=True)
without_option = option("--without NODE,…", "Leave out these nodes (repeatable).", multiple=True)
_SELECTION = (
    query_option,
    role_option,
    option("--failed-in ID", "Nodes that did not succeed in the rollout ID."),
    without_option,
)
ANY, SOME, OPTION = "[NODE]...", "NODE...", "--node"


def selects_nodes(form: str, *, of_all: bool = False) -> Decorator:
    """Return the decorator that adds the selection of nodes, which a command gets as `selection`.

    Args:
        form: How nodes are named: `ANY` or `SOME` arguments, or the option `--node` beside another
            argument.
        of_all: Whether the command is for all nodes if none is named, and not for this one.
    """
    names = (
        option("--node nodes NODE", "This node (repeatable).", multiple=True)
        if form == OPTION
        else click.argument("nodes", nargs=-1, metavar=form)
    )

    def add(function: Any) -> Any:  # noqa: ANN401 - what click decorates
        @wraps(function)
        def select(*positional: Any, **given: Any) -> Any:  # noqa: ANN401
            from localpuppet.node.node_ports import NodeSelection

            parts = {name: given.pop(name) for name in NodeSelection.__value_fields__}
            for name in ("nodes", "without"):
                parts[name] = [word for text in parts[name] for word in text.split(",")]
            selection = NodeSelection(**parts)
            words = [word for word in selection.nodes if re.search("[=<>~]", word)]
            if words:
                query = " ".join([selection.query or "", *selection.nodes]).strip()
                raise click.UsageError(f"{words[0]!r} is no node: write --query '{query}'")
            if not (selection or of_all) and (form == SOME or selection.without):
                raise click.UsageError(
                    "name nodes, or select them with --query, --role or --failed-in"
                )
            return function(*positional, selection=selection, **given)

        selecting = options("Nodes", *_SELECTION)(select)
        return options("Nodes", names)(selecting) if form == OPTION else names(selecting)

    return add


def only_here(selection: "NodeSelection", **options: object) -> None:
    """Reject options that apply only to this node if other nodes are named."""
    given = [name for name, value in options.items() if value]
    if selection and given:
        raise click.UsageError(
            f"{given[0].replace('_', '-')} works on this node only: leave out the other nodes"
        )


@cache
def other_words(kind: str) -> Mapping[str, str]:
    """Return the `words` or `options` of other programs, each with what is right here."""
    import tomllib

    file = Path(__file__).with_name("other_words.toml")
    rows = tomllib.loads(file.read_text("utf-8"))[kind].items()
    return {word: right for right, words in rows for word in words.split()}


MAX_WORD = 60
HIDDEN = "call"  # for the Puppet modules


class CommandGroup(Command, click.Group):
    """A group of commands.

    Args:
        sections: Title in the help → command → module in `localpuppet`, in which the command is
            named `COMMAND_command`.
        aliases: Other name of a command → the words that it means.
        everyday: The commands with which the help begins; the others are one line a section.
    """

    def __init__(
        self,
        *,
        sections: Mapping[str, Mapping[str, str]],
        aliases: Mapping[str, str] = NONE,
        everyday: Sequence[str] = (),
        **arguments: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(exits=dict.fromkeys(EXITS, ""), no_args_is_help=True, **arguments)
        self.sections, self._aliases = sections, aliases
        self._everyday = everyday
        self._modules = {name: file for part in sections.values() for name, file in part.items()}

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - what click returns
        """Run the command; if an optional library is missing, name its extra."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            from localpuppet.base.machine.own_program import explain_missing

            command = f"{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip()
            explained = explain_missing(error, where=command)
            if explained is None:
                raise
            raise explained from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
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
        described = {"Every day": self._everyday} if self._everyday else self.sections
        for title, names in described.items():
            subcommands = {name: self.get_command(ctx, name) for name in names}
            rows = [
                (name.ljust(width), command.get_short_help_str())
                for name, command in subcommands.items()
                if command is not None and not command.hidden
            ]
            with formatter.section(title):
                formatter.write_dl(rows)
        shown = {*self._everyday, HIDDEN}
        others = [
            (title, ", ".join(left))
            for title, names in self.sections.items()
            if (left := [name for name in names if name not in shown])
        ]
        if self._everyday:
            with formatter.section("All other commands"):
                formatter.write_dl(others)
        super().format_options(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, also by an old name, or suggest up to three."""
        word = args[0]
        if now := self._renamed.get(word):
            _note_renamed(word, now)
        if now := now or self._aliases.get(word):
            return super().resolve_command(ctx, [*now.split(), *args[1:]])
        if word not in self._modules and (right := self._right_for(ctx, word)):
            raise click.UsageError(f"unknown command {word!r}: run 'localpuppet {right}'", ctx)
        if word not in self._modules and not word.startswith("-"):
            below = [path for path in self._paths_below(ctx) if path.endswith(f" {word}")]
            hint = suggest(below[0], below) if below else suggest(word, list(self._modules))
            raise click.UsageError(f"unknown command {word[:MAX_WORD]!r}{hint and ': '}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def _right_for(self, ctx: click.Context, word: str) -> str:
        """Return the words that are right in place of one of another program; empty if unknown."""
        words = other_words("words")
        right = words.get(word, "")
        is_near = ctx.parent is None or right.startswith(f"{ctx.info_name} ")
        return words.get(f"{ctx.info_name}:{word}") or (right if is_near else "")

    def _paths_below(self, ctx: click.Context) -> list[str]:
        """Return the commands of the groups in this one, each with its group's name."""
        groups = {name: self.get_command(ctx, name) for name in self._modules}
        return [
            f"{name} {below}"
            for name, group in groups.items()
            if isinstance(group, click.Group)
            for below in group.list_commands(ctx)
        ]


confirmation_options = options(
    "Confirmation",
    flag("--dry-run", "Show what would change; change nothing."),
    flag("-y --yes", "Do not ask. Without a terminal, the command requires this option."),
)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the person at the terminal, unless they said yes.

    Raises:
        click.UsageError: There is no terminal.
        click.exceptions.Exit: The answer is no.
    """
    if yes:
        return
    if not render.on_terminal(sys.stdin):
        raise click.UsageError(
            f"cannot {question} without a confirmation: pass --yes, or --dry-run to look"
        )
    if not click.confirm(f"{question}?", err=True):
        render.say("nothing changed", err=True)
        raise click.exceptions.Exit(1)


def user() -> str:
    """Return the user: the person behind sudo, the login, or the uid."""
    import pwd

    name = os.environ.get("SUDO_USER")
    if name:
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
