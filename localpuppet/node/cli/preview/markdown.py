"""Writes a preview as Markdown for a pull request: what fails first, details folded.

- The text has at most `MAX_BYTES` bytes, because forges refuse longer comments. Each group gets a
  line before one gets its details, and what is left out is counted.
- User text is only in code spans, code blocks and `<code>` elements, where neither Markdown nor
  HTML nor a mention (`@team`) has an effect.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape

from localpuppet.base.formats.text import shortened
from localpuppet.node.cli.preview import wording
from localpuppet.node.preview.difference import ParameterChange
from localpuppet.node.preview.result import ChangeGroup, PreviewResult

MAX_BYTES = 60_000
MAX_ROWS = 15  # of a notice
MAX_NAMES = 8  # of nodes in a row
MAX_TEXT = 300  # characters of a code span
MAX_DETAILS = 8_000  # bytes of a group
MAX_LINES = 60  # of a text of several lines
# The part of the room that lines of groups without details may fill.
_SHARE_OF_LINES = 0.5
_ROOM_FOR_REST = 100  # bytes of the line that counts what is left out
_SIGNS = {"~": "!", "+": "+", "-": "-"}  # what a code block of the language `diff` colours


def preview_markdown(result: PreviewResult) -> str:
    """Return the preview as Markdown."""
    start = "\n".join(_start(result))
    end = f"{wording.statistics(result)}\n"
    room = MAX_BYTES - _size(start) - _size(end) - _ROOM_FOR_REST
    blank = "\n"  # without it, the last row of a list contains the statistics
    return f"{start}\n{_groups(result.groups, room) or blank}{end}"


def _start(result: PreviewResult) -> Iterator[str]:
    yield f"### Preview of {_code(result.base.name)} → {_code(result.head.name)}"
    yield f"\n**{wording.headline(result)}**"
    if result.shard:
        yield f"\nPart {result.shard} of the nodes."
    for notice in wording.notices(result):
        yield f"\n#### {notice.title}\n"
        for row in notice.rows[:MAX_ROWS]:
            label = f"{_code(row.label)}: " if row.label else ""
            nodes = f", {_names(row.nodes)}" if row.nodes else ""
            yield f"- {label}{_code(row.text)}{nodes}"
        rest = len(notice.rows) - MAX_ROWS
        if rest > 0:
            yield f"- and {wording.count(rest, f'more {notice.noun}')}"


def _groups(groups: Sequence[ChangeGroup], room: int) -> str:
    """Return the groups, as many with details as the room allows."""
    if not groups:
        return ""
    title = "\n#### Changes\n\n"
    room -= _size(title)
    lines: list[str] = []
    left = room * _SHARE_OF_LINES
    for group in groups:
        line = f"- {_group_line(group)}\n"
        left -= _size(line)
        if left < 0:
            break
        lines.append(line)
    room -= sum(map(_size, lines))
    blocks: list[str] = []
    for group, line in zip(groups, lines, strict=False):
        block = _group_block(group)
        room -= _size(block) - _size(line)
        if room < 0:
            break  # details are those of the first groups, so that the list has one order
        blocks.append(block)
    between = "\n" if 0 < len(blocks) < len(lines) else ""
    rest = groups[len(lines) :]
    nodes = wording.count(sum(len(group.nodes) for group in rest), "node")
    more_groups = f"- and {wording.count(len(rest), 'more group')} with {nodes}\n" if rest else ""
    body = "".join([*blocks, between, *lines[len(blocks) :], more_groups])
    return f"{title}{body}\n"


def _group_line(group: ChangeGroup) -> str:
    summary = wording.summary(group.difference, most=3)
    number = wording.count(len(group.nodes), "node")
    return f"**{number}** {_role(group)}{' '.join(map(_code, summary))}"


def _group_block(group: ChangeGroup) -> str:
    summary = " ".join(
        f"<code>{escape(shortened(text, MAX_TEXT))}</code>"
        for text in wording.summary(group.difference, most=3)
    )
    body, rest = _details(group)
    fence = _fence(body, least=3)
    number = wording.count(len(group.nodes), "node")
    return (
        f"<details><summary><b>{number}</b> {_role(group, html=True)}"
        f"{summary}</summary>\n\n"
        f"{_names(group.nodes)}\n\n{fence}diff\n{body}\n{fence}\n\n{rest}</details>\n\n"
    )


def _role(group: ChangeGroup, *, html: bool = False) -> str:
    _, _, role = wording.group_label(group).partition(" (")
    if not role:
        return ""
    text = role.removesuffix(")")
    return f"(<code>{escape(text)}</code>) " if html else f"({_code(text)}) "


def _details(group: ChangeGroup) -> tuple[str, str]:
    """Return the changes of a group as a diff of `MAX_DETAILS` bytes, and a line for the rest."""
    rows: list[str] = []
    room = MAX_DETAILS
    changes = [*wording.lines(group.difference)]
    for number, line in enumerate(changes):
        block = [f"{_SIGNS[line.sign]} {line.text}"]
        block += [row for change in line.parameters for row in _parameter(change)]
        room -= _size("\n".join(block)) + 1
        if room < 0 and number == 0:
            return "\n".join([*rows, *block[: MAX_LINES // 2]])[:MAX_DETAILS], _rest(
                len(changes) - 1
            )
        if room < 0:
            return "\n".join(rows), _rest(len(changes) - number)
        rows += block
    return "\n".join(rows), ""


def _rest(number: int) -> str:
    return f"and {wording.count(number, 'more change')}\n\n" if number else ""


def _parameter(change: ParameterChange) -> Iterator[str]:
    name = wording.message(change.name)
    rows = wording.diff_lines(change, most=MAX_LINES)
    if rows:
        yield f"    {name}:"
        yield from rows
        return
    before, after = wording.values(change)
    if before == after:
        yield f"!   {name} => {after}"
        return
    if change.before is not None:
        yield f"-   {name} => {before}"
    if change.after is not None:
        yield f"+   {name} => {after}"


def _names(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMES
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"{', '.join(map(_code, names[:MAX_NAMES]))}{more}"


def _code(text: str) -> str:
    """Return a code span with a text in one line."""
    line = shortened(text, MAX_TEXT) or " "
    fence = _fence(line, least=1)
    blank = " " if line[0] in "` " or line[-1] in "` " else ""
    return f"{fence}{blank}{line}{blank}{fence}"


def _fence(text: str, *, least: int) -> str:
    """Return backticks that no run of backticks in a text ends."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))
