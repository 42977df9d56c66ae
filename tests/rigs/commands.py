"""The commands of localpuppet, and calls of them in texts, parsed but not executed."""

import re
import shlex
from collections.abc import Iterator, Sequence

import click

from localpuppet.base.errors import LocalpuppetError
from localpuppet.main import cli

CALL = re.compile(r"(?<![\w./:-])localpuppet (?=[a-z-])")
COMMENT = re.compile(r"(?<=\S) {2,}(?!\\).*")
PLACEHOLDER = re.compile(r"[A-Z%|_,…-]+|\$\w+|\{\w+\}")
OPERATORS = "|;&()<>"


def _walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        with click.Context(command) as ctx:
            for name in command.list_commands(ctx):
                below = command.get_command(ctx, name)
                assert below is not None
                yield from _walk(below, f"{path} {name}".strip())


# Path of a command without `localpuppet` → the command.
COMMANDS = dict(_walk(cli, ""))


def words_of(line: str) -> Iterator[list[str]]:
    """Yield the words behind `localpuppet` of each call in a line of shell."""
    for call in CALL.finditer(line):
        lexer = shlex.shlex(
            COMMENT.sub("", line[call.end() :]), posix=True, punctuation_chars=OPERATORS
        )
        lexer.whitespace_split = True
        words = list[str]()
        for word in lexer:
            if word and word[0] in OPERATORS:
                break
            words.append(word)
        yield words


def parse_words(words: Sequence[str]) -> None:
    """Parse a call.

    Raises:
        click.UsageError: The command or an option does not exist, or an argument is missing.
    """
    command: click.Command = cli
    ctx, name, rest = None, "localpuppet", [*words]
    while True:
        ctx = command.make_context(name, rest, parent=ctx)
        if not isinstance(command, click.Group):
            return
        rest = [*ctx._protected_args, *ctx.args]
        resolved, below, rest = command.resolve_command(ctx, rest)
        assert resolved is not None
        assert below is not None
        command, name = below, resolved


def problem_of(words: Sequence[str], *, complete: bool = True) -> str:
    """Return why a call in a text is wrong; empty if it is right.

    - Words in capitals, `…`, `$NAME` and `{name}` are placeholders; words in brackets are optional.
    - A command without arguments only names the command: 'localpuppet disable'.
    """
    named = [word for word in words if word != "..." and not re.match(r"\[|[^\[]*\]$", word)]
    words = [word.removesuffix("...") for word in named]
    if " ".join(words) in COMMANDS:
        return ""
    try:
        parse_words(words[:-1] if words[-1] == "…" else words)
    except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
        return ""
    except (click.MissingParameter, click.BadOptionUsage) as error:
        return error.format_message() if complete else ""
    except click.BadParameter as error:
        is_path = error.param is not None and isinstance(error.param.type, click.Path)
        filled = any(map(_is_placeholder, words))
        return "" if is_path or filled else error.format_message()
    except LocalpuppetError:
        return ""  # about a value, such as a directory that must exist
    except click.UsageError as error:
        is_value = any(
            f"command {word!r}" in error.message for word in words if _is_placeholder(word)
        )
        return "" if is_value else error.format_message()
    return ""


def _is_placeholder(word: str) -> bool:
    return PLACEHOLDER.fullmatch(word) is not None
