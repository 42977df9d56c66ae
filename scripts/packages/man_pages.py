"""Write a man page for each command, from its help: man_pages.py DIRECTORY DATE.

DIRECTORY has `man8` for commands and `man5` for files. The pages of files come from those of the
documentation, `docs/reference`, of which the settings are generated from their declarations.

click-man, which does this for other programs, does not know examples, exit codes and commands
that are loaded when called.
"""

import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from localpuppet import __version__
from localpuppet.main import cli
from localpuppet.node.cli.command import Command, CommandGroup

SECTION = 8
# Man page of section 5 → page in docs/reference.
FILES = {
    "localpuppet.yaml": "settings",
    "localpuppet-input": "input",
    "localpuppet-policy": "policies",
}
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
# troff's names of characters: without them a quote becomes typographic, and cannot be pasted.
_CHARACTERS = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}
# What a terminal without UTF-8 would lose.
_CHARACTERS |= {"…": "...", "→": "\\->", "–": "\\-", "≤": "<=", "≥": ">=", "×": "x"}
_TABLE = str.maketrans(_CHARACTERS)


def escaped(text: str) -> str:
    """Return text with troff's special characters escaped, in ASCII.

    Raises:
        UnicodeEncodeError: A character has no form in ASCII yet: add it to the table.
    """
    lines = text.translate(_TABLE).encode("ascii").decode().splitlines()
    return "\n".join(f"\\&{line}" if line.startswith(".") else line for line in lines)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help; those that click does not wrap keep their lines."""
    for paragraph in cleandoc(text).split("\n\n"):
        if not paragraph.startswith("\b"):
            yield f".PP\n{escaped(' '.join(paragraph.split()))}"
            continue
        title, *lines = paragraph.removeprefix("\b").strip("\n").splitlines()
        body = "\n".join(lines)
        yield f".PP\n{escaped(title)}\n.PP\n{literal(body)}"


def terms(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield a list of terms and their descriptions."""
    for term, meaning in rows:
        yield f".TP\n.B {escaped(term)}\n{escaped(' '.join(meaning.split()))}"


def literal(text: str) -> str:
    """Return lines that keep their breaks."""
    return f".nf\n{escaped(text)}\n.fi"


def page(context: click.Context, date: str) -> str:
    """Return the man page of one command."""
    command, name = context.command, context.command_path.replace(" ", "-")
    if not isinstance(command, Command):
        raise TypeError(name)
    synopsis = " ".join(command.collect_usage_pieces(context))
    parts = [
        f'.TH {escaped(name.upper())} {SECTION} "{date}" "localpuppet {__version__}"',
        f".SH NAME\n{escaped(name)} \\- {escaped(command.get_short_help_str())}",
        f".SH SYNOPSIS\n.B {escaped(context.command_path)}\n{escaped(synopsis)}",
        ".SH DESCRIPTION",
        *paragraphs(command.help or ""),
    ]
    below = dict(subcommands(context))
    if isinstance(command, CommandGroup):
        for title, names in command.sections.items():
            rows = [(one, below[one].get_short_help_str()) for one in names if one in below]
            parts += [f".SH {title.upper()}", *terms(rows)]
    for title, options in command.option_groups(context):
        records = [option.get_help_record(context) for option in options]
        parts += [f".SH {title.upper()}", *terms([record for record in records if record])]
    codes = [(str(code), meaning) for code, meaning in command.exit_codes.items()]
    parts += [".SH EXAMPLES", literal(command.examples), ".SH EXIT STATUS", *terms(codes)]
    related = [f"{name}\\-{escaped(verb)}" for verb in below]
    if context.parent is not None:
        related.insert(0, escaped(context.parent.command_path.replace(" ", "-")))
    if related:
        parts.append(".SH SEE ALSO\n" + ",\n".join(f".BR {one} ({SECTION})" for one in related))
    return "\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return a line of Markdown without its markup: links, emphasis and inline code."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`([^`]*)`|\*\*?([^*]+)\*\*?|<!--.*?-->", r"\1\2", text)


def blocks(text: str) -> Iterator[str]:
    """Yield the blocks of a page in Markdown in troff's form; See also is left out."""
    for part in re.split(r"(^```.*?^```)", text.partition("\n## See also")[0], flags=re.M | re.S):
        if part.startswith("```"):
            yield ".PP\n" + literal("\n".join(part.splitlines()[1:-1]))
            continue
        for block in filter(None, (block.strip() for block in part.split("\n\n"))):
            heading = re.fullmatch(r"(#+) (.*)", block)
            if heading:
                macro = ".SH" if len(heading[1]) == 2 else ".SS"
                yield f"{macro} {escaped(plain(heading[2]))}"
            elif block.startswith("|"):
                rows = [re.split(r" *(?<!\\)\| *", row)[1:-1] for row in block.splitlines()]
                cells = [[plain(cell) for cell in row] for row in rows if set(row[0]) - {"-"}]
                yield from terms([(row[0], "; ".join(row[1:])) for row in cells[1:]])
            elif block.startswith("- "):
                items = re.split(r"(?:^|\n)- ", block)[1:]
                yield from (f".IP \\(bu 2\n{escaped(plain(' '.join(i.split())))}" for i in items)
            else:
                yield f".PP\n{escaped(plain(' '.join(block.split())))}"


def file_page(name: str, text: str, date: str) -> str:
    """Return the man page of a file from its page in Markdown."""
    title, _, rest = text.partition("\n")
    head = f'.TH {escaped(name.upper())} 5 "{date}" "localpuppet {__version__}"'
    what = escaped(f"{plain(title.removeprefix('# ')).lower()} of localpuppet")
    return (
        "\n".join([head, f".SH NAME\n{escaped(name)} \\- {what}", ".SH DESCRIPTION", *blocks(rest)])
        + "\n"
    )


def subcommands(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield the visible commands of a group, with their names."""
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield name, command


def write(context: click.Context, directory: Path, date: str) -> None:
    """Write the man pages of a command and of its subcommands."""
    name = context.command_path.replace(" ", "-")
    (directory / f"man{SECTION}" / f"{name}.{SECTION}").write_text(page(context, date), "utf-8")
    for verb, command in subcommands(context):
        write(click.Context(command, info_name=verb, parent=context), directory, date)


if __name__ == "__main__":
    top = click.Context(cli, info_name="localpuppet")
    pages = Path(sys.argv[1])
    for number in (5, SECTION):
        (pages / f"man{number}").mkdir(exist_ok=True)
    write(top, pages, sys.argv[2])
    for file, source in FILES.items():
        markdown = (REFERENCE / f"{source}.md").read_text("utf-8")
        (pages / "man5" / f"{file}.5").write_text(file_page(file, markdown, sys.argv[2]), "utf-8")
