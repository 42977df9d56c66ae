"""Formats output for people and programs: lines, colours, tables, JSON."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TextIO

import click

from localpuppet.base.formats.text import one_line, printable, without_commands
from localpuppet.base.formats.times import show_duration
from localpuppet.node.runs.observer import NoteObserver

COLORS = {
    "unchanged": "green",
    "changed": "cyan",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "yellow",
    "interrupted": "red",
    "refused": "red",
    "running": "cyan",
    "queued": "cyan",
}
# What `--color` says: errors are shown when the command that knew it is over.
COLOR: ContextVar[str] = ContextVar("color", default="auto")
LEAST_ROOM = 8
# Columns that are cut last: other commands need the whole word.
WHOLE = ("RUN", "ROLLOUT", "NODE", "FINGERPRINT")
LONGEST = 10**9
_LEVELS = {
    "Error:": "red",
    "Critical:": "red",
    "Warning:": "yellow",
    "Info:": "green",
    "Debug:": "cyan",
}


class CommandFreeStream:
    """A stream on which no text of strangers is a command for the runner of a CI job."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before = "\n"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        shown, self._before = without_commands(text, self._before)
        self._stream.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)


def use_color(choice: str, stream: TextIO | None) -> bool:
    """Return whether output on `stream` has colours, for `--color` of `choice`."""
    if choice != "auto":
        return choice == "always"
    return not os.environ.get("NO_COLOR") and on_terminal(stream)


def on_terminal(stream: TextIO | None) -> bool:
    """Return whether a person reads `stream`; a closed one is `None`."""
    return stream is not None and stream.isatty()


def fail(message: str) -> None:
    """Show an error: one line on standard error."""
    color = use_color(COLOR.get(), sys.stderr)
    head = click.style("error:", fg="red", bold=True) if color else "error:"
    click.echo(f"localpuppet: {head} {one_line(message)}", err=True, color=color)


def as_json(value: object) -> str:
    """Return the JSON document for programs."""
    return json.dumps(value, indent=2)


def emit_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(as_json(value))


def emit_json_line(value: object) -> None:
    """Print one JSON document on one line, for a stream of documents."""
    click.echo(json.dumps(value))


def emit(text: str) -> None:
    """Print a line."""
    click.echo(text)


def word(state: str, *, noop: bool = False) -> str:
    """Return a state or outcome in its colour; other nodes may send unknown ones."""
    colored = click.style(one_line(state.replace("_", " ")), fg=COLORS.get(state), bold=True)
    return f"{colored} (noop)" if noop else colored


def pairs(rows: Iterable[tuple[str, str]], margin: int = 0) -> str:
    """Return labelled lines, with a margin before them; rows without a value are left out."""
    kept = [(label, value) for label, value in rows if value]
    width = max((len(label) for label, _ in kept), default=0)
    return "\n".join(
        hanging(f"{click.style(label.ljust(width), dim=True)}  ", value, margin)
        for label, value in kept
    )


def hanging(head: str, text: str, margin: int = 0) -> str:
    """Return text after a head; on a terminal it is wrapped between words and indented.

    Args:
        head: The start of the first line; it may be styled.
        margin: Blanks that the caller puts before each line.
    """
    indent = len(click.unstyle(head))
    width = columns()
    if width is None or (width := width - margin) - indent < LEAST_ROOM:
        return head + text
    lines, room = [""], 0
    words = [piece for word in text.split(" ") for piece in _pieces(word, width - indent)]
    for word in words:
        length = len(click.unstyle(word))
        if room and indent + room + 1 + length > width:
            lines.append(word)
            room = length
        else:
            lines[-1] += f" {word}" if room else word
            room += length + (1 if room else 0)
    return head + f"\n{' ' * indent}".join(lines)


def _pieces(word: str, most: int) -> list[str]:
    """Return a word in pieces that fit a line; a styled word stays whole."""
    if len(word) <= most or click.unstyle(word) != word:
        return [word]
    return [word[start : start + most] for start in range(0, len(word), most)]


def columns() -> int | None:
    """Return the width of the terminal; `None` without one."""
    if not on_terminal(sys.stdout):
        return None
    import shutil  # a pipe needs no width, and saves 2 ms

    return shutil.get_terminal_size().columns


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    spare: Sequence[str] = (),
) -> str:
    """Return aligned columns under a head; cells may be styled.

    Args:
        width: Maximum width; by default the terminal's, unlimited without one. The last, unstyled
            cells are cut first; if that is not enough, columns of `spare` are left out in order,
            then the longest cells are cut.
        spare: Headings of columns that can be left out.
    """
    width = columns() if width is None else width
    if width is not None:
        head, rows = _fitted(head, rows, width, list(spare))
    lengths = [[len(click.unstyle(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(column) for column in zip(*lengths, strict=True)]
    room = LONGEST if width is None else width - sum(column + 2 for column in widths[:-1])
    last = _cut(head[-1], room) if room >= LEAST_ROOM else head[-1]
    styled = [click.style(cell, bold=True) for cell in (*head[:-1], last)]
    return "\n".join([aligned(styled, widths), *(aligned(row, widths, end=width) for row in rows)])


def _fitted(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, spare: list[str]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return a table that fits a width, without spare columns and with shorter cells."""
    while _overhang(head, rows, width, max(LEAST_ROOM, len(head[-1]))) > 0:
        widest = next((name for name in spare if name in head), None)
        if widest is None:
            break
        kept = [index for index, name in enumerate(head) if name != widest]
        head, *rows = ([row[index] for index in kept] for row in (head, *rows))
    shorter = rows
    while (over := _overhang(head, shorter, width)) > 0:
        columns_ = range(len(head) - 1)
        rooms = [max((len(r[i]) for r in shorter if _plain(r[i])), default=0) for i in columns_]
        long = [index for index in columns_ if rooms[index] > LEAST_ROOM]
        if not long:
            return head, rows  # no cut would do
        others = [index for index in long if head[index] not in WHOLE]
        longest = max(others or long, key=lambda index: rooms[index])
        room = max(LEAST_ROOM, rooms[longest] - over)
        shorter = [
            [*row[:longest], _cut(row[longest], room), *row[longest + 1 :]] for row in shorter
        ]
    return head, shorter


def _overhang(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, least: int = LEAST_ROOM
) -> int:
    """Return by how much a table exceeds `width` with its last cells cut to `least` characters."""
    widths = [max(len(click.unstyle(row[i])) for row in (head, *rows)) for i in range(len(head))]
    last = min(widths[-1], least)
    return sum(length + 2 for length in widths[:-1]) + last - width


def _plain(cell: str) -> bool:
    return click.unstyle(cell) == cell


def _cut(cell: str, room: int) -> str:
    """Return a cell that fits; a styled one is a short word and stays."""
    short = len(cell) <= room or not _plain(cell)
    return cell if short else f"{cell[: room - 1]}…"


def aligned(cells: Sequence[str], widths: Sequence[int], *, end: int | None = None) -> str:
    """Return a table row with these column widths; cells may be styled. `end` is as in `table`."""
    *others, last = cells
    room = LONGEST if end is None else end - sum(width + 2 for width in widths[:-1])
    if LEAST_ROOM <= room < len(last):
        last = f"{last[: room - 1]}…"
    padded = (
        cell + " " * (width - len(click.unstyle(cell)))
        for cell, width in zip((*others, last), widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def counted(count: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`, `2 classes`, `2 repositories`, `2 keys`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and not noun.endswith("key"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def puppet_line(text: str) -> str:
    """Return a line of Puppet's output in the colour of its level."""
    color = _LEVELS.get(text.partition(" ")[0])
    return click.style(text, fg=color) if color else text


def user_text(value: object) -> str:
    """Return recorded text, or that of another node, as one line without effects on a terminal."""
    return printable(str(value)).replace("\n", r"\x0a")


def note(text: str) -> None:
    """Show a note on standard error."""
    say(f"# {one_line(text)}", err=True)


class QuietObserver(NoteObserver):
    """Observes a run for a program: only notes, on standard error."""

    def note(self, text: str) -> None:
        note(text)


class Lines(QuietObserver):
    """Observes a run for a log or a pipe: plain lines as they arrive."""

    def __init__(self, title: str = "", *, short: str = "") -> None:
        super().__init__(title)
        self._short = short

    def command(self, text: str) -> None:
        """Show the command line, or its short form."""
        say(click.style(self._short, dim=True) if self._short else one_line(text))

    def line(self, text: str) -> None:
        """Show a line of output."""
        say(puppet_line(text))


class Terminal(Lines):
    """Observes a run for a person: lines as they arrive, above a progress line."""

    def __init__(self, title: str, *, short: str = "") -> None:
        super().__init__(title, short=short)
        from localpuppet.node.cli.progress_line import ProgressLine

        self._below = ProgressLine(sys.stderr, title)
        self._second = -1
        self._begun = False

    def command(self, text: str) -> None:
        """Show the command line and begin the progress line."""
        super().command(text)
        self.begin()

    def begin(self) -> None:
        """Begin the progress line."""
        self._begun = True
        self._below.start()

    def tick(self, seconds: float) -> None:
        """Update the progress line."""
        if int(seconds) != self._second:
            self._second = int(seconds)
            self._below.show(show_duration(self._second))

    def count(self, done: int, total: int, things: str) -> None:
        """Show the progress."""
        self._below.show(f"{done} of {total} {things}")

    def title(self, text: Callable[[], str]) -> None:
        """Show what `text` returns as the current activity, whenever the line is drawn again."""
        self._below.title = text
        self._second = -1

    def line(self, text: str) -> None:
        """Show a line of output above the progress line."""
        self._above(super().line, text)

    def note(self, text: str) -> None:
        """Show a note above the progress line."""
        self._above(super().note, text)

    def close(self) -> None:
        """Remove the progress line."""
        self._begun = False
        self._below.stop()

    def _above(self, show: Callable[[str], None], text: str) -> None:
        """Show a text above the progress line, if that has begun.

        Two observers that draw at the same time would fill the screen.
        """
        self._below.stop()
        show(text)
        if self._begun:
            self._below.start()


def observer(*, quiet: bool, title: str, short: str = "") -> QuietObserver:
    """Return the observer of a run for a program, a log, or a person.

    Args:
        short: A short form of the command line for people; empty for the whole line.
    """
    if quiet:
        return QuietObserver()
    # Progress requires a terminal on both.
    terminal = on_terminal(sys.stdout) and on_terminal(sys.stderr)
    short = short if on_terminal(sys.stdout) else ""
    if terminal and os.environ.get("TERM") != "dumb":
        return Terminal(title, short=short)
    return Lines(title, short=short)


def progress(title: str) -> QuietObserver:
    """Return a progress display for a person at a terminal, or a silent one."""
    return observer(quiet=not on_terminal(sys.stdout), title=title)


def say(text: str, *, err: bool = False) -> None:
    """Print a line of a run; a closed pipe or lost terminal does not end the run."""
    try:
        click.echo(text, err=err)
    except (OSError, ValueError):
        drop_stream(sys.stderr if err else sys.stdout)


def drop_stream(stream: TextIO | None) -> None:
    """Discard the remaining output of a stream without a reader.

    Otherwise the interpreter would fail at its exit, and a good run would exit 120.
    """
    if stream is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def mapping_lines(value: Mapping[str, Any], indent: str = "") -> str:
    """Return a mapping as indented lines for people, one line a value."""
    lines = []
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            lines += [f"{indent}{one_line(key)}:", mapping_lines(item, indent + "  ")]
        else:
            shown = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            lines.append(f"{indent}{one_line(key)}: {one_line(shown)}")
    return "\n".join(lines)
