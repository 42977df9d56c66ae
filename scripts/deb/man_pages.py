"""Write a man page for each command, from its help: man_pages.py DIRECTORY DATE.

click-man, which does this for other programs, leaves out epilogs (examples and exit codes) and
does not know commands that are loaded when called.
"""

import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from localpuppet import __version__
from localpuppet.main import cli

SECTION = 8


def escaped(text: str) -> str:
    """Return text with troff's special characters escaped."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help; those that click does not wrap keep their lines."""
    for paragraph in cleandoc(text).split("\n\n"):
        if not paragraph.startswith("\b"):
            yield f".PP\n{escaped(' '.join(paragraph.split()))}"
            continue
        title, *lines = paragraph.removeprefix("\b").strip("\n").splitlines()
        body = "\n".join(escaped(line) for line in lines)
        yield f".PP\n{escaped(title)}\n.PP\n.nf\n{body}\n.fi"


def terms(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield a list of terms and their descriptions."""
    for term, meaning in rows:
        yield f".TP\n.B {escaped(term)}\n{escaped(' '.join(meaning.split()))}"


def page(context: click.Context, verbs: dict[str, click.Command], date: str) -> str:
    """Return the man page of one command."""
    command, name = context.command, context.command_path.replace(" ", "-")
    given = (one for one in command.get_params(context) if isinstance(one, click.Option))
    options = [record for one in given if (record := one.get_help_record(context)) is not None]
    synopsis = " ".join(command.collect_usage_pieces(context))
    parts = [
        f'.TH {escaped(name.upper())} {SECTION} "{date}" "localpuppet {__version__}"',
        f".SH NAME\n{escaped(name)} \\- {escaped(command.get_short_help_str(limit=200))}",
        f".SH SYNOPSIS\n.B {escaped(context.command_path)}\n{escaped(synopsis)}",
        ".SH DESCRIPTION",
        *paragraphs(command.help or ""),
        ".SH OPTIONS",
        *terms(options),
    ]
    if verbs:
        rows = [(one, verb.get_short_help_str(limit=200)) for one, verb in verbs.items()]
        parts += [".SH COMMANDS", *terms(rows)]
    if command.epilog:
        parts += [".SH NOTES", *paragraphs(command.epilog)]
    related = [f"{name}\\-{escaped(verb)}" for verb in verbs]
    if context.parent is not None:
        related.insert(0, escaped(context.parent.command_path.replace(" ", "-")))
    if related:
        parts.append(".SH SEE ALSO\n" + ",\n".join(f".BR {one} ({SECTION})" for one in related))
    return "\n".join(parts) + "\n"


def write(context: click.Context, directory: Path, date: str) -> None:
    """Write the man pages of a command and of its subcommands."""
    command = context.command
    verbs = {}
    if isinstance(command, click.Group):
        found = {
            verb: command.get_command(context, verb) for verb in command.list_commands(context)
        }
        verbs = {verb: one for verb, one in found.items() if one is not None and not one.hidden}
    name = context.command_path.replace(" ", "-")
    (directory / f"{name}.{SECTION}").write_text(page(context, verbs, date), "utf-8")
    for verb, one in verbs.items():
        write(click.Context(one, info_name=verb, parent=context), directory, date)


if __name__ == "__main__":
    top = click.Context(cli, info_name="localpuppet", help_option_names=["-h", "--help"])
    write(top, Path(sys.argv[1]), sys.argv[2])
