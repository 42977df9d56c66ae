"""Render the pages of the commands from the command line: one page for each section of its help.

Example:
    pages = render_command_pages(cli, "scripts/reference")
"""

import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from textwrap import fill

import click

from localpuppet.node.cli.command import TIME, Command, CommandGroup

WIDTH = 120
# A text in single quotes, but no apostrophe.
_QUOTED = re.compile(r"(?<!\w)'([^'\n]+)'(?!\w)")
_ADDRESS = re.compile(r"((?:https?|file)://[^\s,;)`]+)")
_MARKUP = re.compile(r"([*<\\]|(?<!\w)_|_(?!\w))")
_SEE_ALSO = """\
## See also

- [Commands](index.md)
- [Exit codes](../exit-codes.md)
- [Settings](../settings.md)"""


def wrap(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of at most 120 characters; code and links stay whole."""
    # A line must not end within inline code: its spaces are protected.
    parts = text.split("`")
    parts[1::2] = [part.replace(" ", "\0") for part in parts[1::2]]
    filled = fill(
        "`".join(parts),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\0", " ")


def slug(title: str) -> str:
    """Return the name of the page of a section: `this-node` for "This node"."""
    return title.lower().replace(" ", "-")


def markdown(text: str) -> str:
    """Return a text of the help as Markdown: quoted texts and URLs are code, markup is escaped."""
    for pattern, replacement in ((_QUOTED, r"`\1`"), (_ADDRESS, r"`\1`"), (_MARKUP, r"\\\1")):
        parts = text.split("`")
        parts[::2] = [pattern.sub(replacement, part) for part in parts[::2]]
        text = "`".join(parts)
    return text


def _wrapped(text: str, indent: str = "") -> str:
    return wrap(markdown(" ".join(text.split())), indent)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```"
        else:
            yield _wrapped(paragraph)


def _options(command: Command, context: click.Context) -> Iterator[str]:
    groups = command.option_groups(context)
    for title, options in groups:
        rows = [
            _wrapped(f"- `{record[0]}`: {record[1]}", "  ")
            for option in options
            if "--help" not in option.opts
            for record in [option.get_help_record(context)]
            if record is not None
        ]
        if rows:
            yield f"{title}:" if title == "Options" else f"{title} options:"
            yield "\n".join(rows)
    if any(option.metavar == "TIME" for _, options in groups for option in options):
        yield markdown(TIME)


def render_command(command: Command, context: click.Context, level: int) -> Iterator[str]:
    """Return the blocks that describe a command: usage, description, options, examples, codes."""
    path = context.command_path
    yield f"{'#' * level} `{path}`"
    usage = f"{path} {' '.join(command.collect_usage_pieces(context))}"
    first, *rest = _paragraphs(command.help or "")
    yield first
    yield f"```text\n{usage}\n```"
    yield from rest
    yield from _options(command, context)
    yield "Examples:"
    yield f"```text\n{command.examples}\n```"
    rows = [f"| {code} | {markdown(text)} |" for code, text in command.exit_codes.items()]
    yield "\n".join(["| Exit code | Meaning |", "|---|---|", *rows])


def _below(group: CommandGroup, context: click.Context) -> Mapping[str, click.Context]:
    contexts = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, Command) and not command.hidden:
            contexts[name] = click.Context(command, info_name=name, parent=context)
    return contexts


def _render_tree(context: click.Context, level: int) -> Iterator[str]:
    command = context.command
    if not isinstance(command, Command):
        raise TypeError(f"{context.command_path}: not a Command")
    yield from render_command(command, context, level)
    if isinstance(command, CommandGroup):
        for inner in _below(command, context).values():
            yield from _render_tree(inner, level + 1)


def render_command_pages(cli: CommandGroup, notice: str) -> dict[str, str]:
    """Return the text of each page by its name: `index`, and one for each section of the help.

    Args:
        cli: The whole command line.
        notice: A line that says where the pages are from.
    """
    context = click.Context(cli, info_name="localpuppet", **cli.context_settings)
    commands = _below(cli, context)
    pages = {}
    listed = []
    for title, names in cli.sections.items():
        shown = [name for name in names if name in commands]
        blocks = [
            f"# {title}",
            notice,
            f"The commands of the section *{title}* in `localpuppet --help`.",
        ]
        for name in shown:
            blocks += _render_tree(commands[name], 2)
        pages[slug(title)] = "\n\n".join([*blocks, _SEE_ALSO]) + "\n"
        words = ", ".join(f"`{name}`" for name in shown)
        listed.append(_wrapped(f"- [{title}]({slug(title)}.md): {words}", "  "))
    first, *rest = _paragraphs(cli.help or "")
    rows = [f"| {code} | {markdown(text)} |" for code, text in cli.exit_codes.items()]
    blocks = [
        "# Commands",
        notice,
        first,
        *rest,
        "\n".join(listed),
        "## Options before the command",
    ]
    blocks += [block for block in _options(cli, context) if block != "Options:"]
    blocks += ["## Examples", f"```text\n{cli.examples}\n```", "## Exit codes"]
    blocks += ["\n".join(["| Exit code | Meaning |", "|---|---|", *rows])]
    blocks += ["## See also", "[Exit codes](../exit-codes.md), [JSON output](../json.md)"]
    pages["index"] = "\n\n".join(blocks) + "\n"
    return pages
