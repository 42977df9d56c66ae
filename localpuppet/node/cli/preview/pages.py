"""Writes a preview as Markdown for a pull request, or as one HTML file with a search.

- The text has at most `MAX_BYTES` bytes, because forges refuse longer comments. Each group gets a
  line before one gets its details, and what is left out is counted.
- User text is only in code spans, code blocks and `<code>` elements, where neither Markdown nor
  HTML nor a mention (`@team`) has an effect.

The content security policy allows the style and the script of the template by their digests, and
nothing else: text of a pull request cannot run, even if it were not escaped.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from localpuppet.base.formats.text import printable, shortened
from localpuppet.node.cli.preview import wording
from localpuppet.node.preview.difference import ParameterChange
from localpuppet.node.preview.result import BOTH, NEW, SAME, UNREADABLE, ChangeGroup, PreviewResult

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


HTML_MAX_BYTES = 16_000_000  # of the details of all groups
MAX_VALUE = 4_000  # characters
HTML_MAX_LINES = 400  # of a text of several lines
MAX_OPEN = 5  # groups whose details are open at first
_BLOCK = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
_KINDS = {"+": "added", "-": "removed", "~": "changed"}
_DIFF_KINDS = {"+": "ins", "-": "del", "@": "place"}


def preview_html(result: PreviewResult) -> str:
    """Return the preview as an HTML page."""
    template = files("localpuppet.node.cli.preview").joinpath("page.html").read_text("utf-8")
    page = Template(template).substitute(
        policy=_policy(template),
        title=_text(wording.revisions(result)),
        headline=_text(wording.headline(result)),
        tiles="".join(_tiles(result)),
        problems="".join(map(_notice, wording.notices(result))),
        groups="".join(_groups_of_html(result.groups)),
        count=wording.count(len(result.groups), "group"),
        statistics=_text(wording.statistics(result)),
    )
    return page.encode("utf-8", "backslashreplace").decode()


def _policy(template: str) -> str:
    sources = []
    for kind, text in _BLOCK.findall(template):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        sources.append(f"{kind}-src 'sha256-{digest}'")
    return f"default-src 'none'; {'; '.join(sources)}; base-uri 'none'; form-action 'none'"


def _tiles(result: PreviewResult) -> Iterator[str]:
    failing = result.failing(NEW, BOTH, SAME, UNREADABLE)
    for kind, number, words in (
        ("quiet", result.nodes, "nodes"),
        ("good", result.unaffected, "unaffected"),
        ("changed", result.changed, wording.verb(result.changed, "change")),
        ("bad", failing, f"{wording.verb(failing, 'fail')} to compile"),
    ):
        tile = kind if number else "quiet"
        yield f'<li class="{tile}"><b>{number:,}</b> {_text(words)}</li>'


def _notice(notice: wording.PreviewNotice) -> str:
    rows = "".join(
        f'<li class="item">{_code_of_html(row.label) if row.label else ""} {_text(row.text)}'
        f"{_nodes(row.nodes) if row.nodes else ''}</li>"
        for row in notice.rows
    )
    title = _text(notice.title)
    return f'<section class="{notice.kind}"><h2>{title}</h2><ul>{rows}</ul></section>'


def _groups_of_html(groups: Sequence[ChangeGroup]) -> Iterator[str]:
    room = HTML_MAX_BYTES
    for number, group in enumerate(groups):
        details = "".join(_changes(group))
        room -= len(details)
        if room < 0:
            details = "<p>The details of this group are in the JSON form.</p>"
        is_open = " open" if number < MAX_OPEN else ""
        summary = " ".join(map(_code_of_html, wording.summary(group.difference, most=4)))
        yield (
            f'<details class="item group"{is_open}>'
            f"<summary><b>{_text(wording.group_label(group))}</b> {summary}</summary>"
            f"{_nodes(group.nodes)}{details}</details>"
        )


def _changes(group: ChangeGroup) -> Iterator[str]:
    for line in wording.lines(group.difference):
        yield (
            f'<div class="change {_KINDS[line.sign]}"><h3><span>{_KINDS[line.sign]}</span> '
            f"{_code_of_html(line.text)}</h3>"
        )
        if line.parameters:
            yield f"<dl>{''.join(map(_parameter_of_html, line.parameters))}</dl>"
        yield "</div>"


def _parameter_of_html(change: ParameterChange) -> str:
    rows = wording.diff_lines(change, most=HTML_MAX_LINES)
    name = f"<dt>{_code_of_html(change.name)}</dt>"
    if rows:
        return f"{name}<dd><pre>{''.join(_diff(rows))}</pre></dd>"
    before, after = wording.values(change, most=MAX_VALUE)
    if before == after:
        return f"{name}<dd>{_text(after)} (differs)</dd>"
    removed = "" if change.before is None else f"<del>{_text(before)}</del>"
    added = "" if change.after is None else f"<ins>{_text(after)}</ins>"
    return f"{name}<dd>{removed}{added}</dd>"


def _diff(rows: Iterable[str]) -> Iterator[str]:
    for row in rows:
        kind = _DIFF_KINDS.get(row[:1])
        text = _text(row)
        tag = kind if kind in ("ins", "del") else "span"
        yield f"<{tag}>{text}\n</{tag}>"


def _nodes(names: Sequence[str]) -> str:
    listed = ", ".join(map(_text, names))
    if len(names) <= 3:
        return f'<p class="nodes">{listed}</p>'
    number = wording.count(len(names), "node")
    return f'<details class="nodes"><summary>{number}</summary><p>{listed}</p></details>'


def _code_of_html(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _text(text: str) -> str:
    """Return text for an element: printable, bounded, escaped."""
    return escape(printable(shortened(text, MAX_VALUE)))
