"""Draws a preview: as Markdown for a pull request, as one HTML page with a search, or as a part.

One walk over the result serves all forms. It begins with totals and the changes by resource, then
come what a user should know first, and the groups: each gets a line before one gets its details,
and what is left out is counted.

- Markdown has at most `MAX_BYTES` bytes, because forges refuse longer comments.
- User text is only in code spans, code blocks and escaped elements, where neither Markdown nor
  HTML nor a mention (`@team`) has an effect.

The content security policy of the page allows the style and the script of the template by their
digests, and nothing else: text of a pull request cannot run, even if it were not escaped.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from localpuppet.node.preview import wording
from localpuppet.node.preview.result import ChangeGroup, PreviewResult

MAX_BYTES = 60_000
HTML_MAX_BYTES = 16_000_000
MAX_TEXT = 700  # characters of a code span in Markdown; more than a message has
MAX_VALUE = 4_000  # of a text in HTML
MAX_RESOURCES = 25  # of the summary; the groups have all
MAX_OPEN = 5  # groups whose details are open at first
# The part of the room that lines of groups without details may fill.
_SHARE_OF_LINES = 0.5
# The part of it that all lists before the groups may fill.
_SHARE_OF_LISTS = 0.5
_ROOM_FOR_REST = 100  # bytes of the line that counts what is left out
_BLOCK = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
_STYLES = {"+": "added", "-": "removed", "~": "changed", "@": "place"}


class MarkdownForm:
    """Markdown, with limits for a comment of a forge."""

    room = MAX_BYTES
    max_rows, max_names, max_details = 15, 8, 8_000
    max_lines, max_value = 60, wording.MAX_VALUE

    def counts(self, result: PreviewResult) -> str:
        return f"\n**{wording.headline(result)}**\n"

    def listed(self, title: str, kind: str, items: Sequence[str], rest: str) -> str:
        """Return a list with a title; `rest` counts what is left out."""
        return "".join(
            [f"\n#### {title}\n\n", *(f"- {item}\n" for item in items), f"- {rest}\n" * bool(rest)]
        )

    def title(self, text: str) -> str:
        return f"\n#### {text}\n\n"

    def code(self, text: str) -> str:
        """Return a code span with a text in one line."""
        line = wording.cut(text, MAX_TEXT) or " "
        fence = _fence(line, least=1)
        blank = " " if line[0] in "` " or line[-1] in "` " else ""
        return f"{fence}{blank}{line}{blank}{fence}"

    def names(self, names: Sequence[str]) -> str:
        """Return names of nodes, the first of them."""
        rest = len(names) - self.max_names
        more = f" and {rest:,} more" if rest > 0 else ""
        return f"{', '.join(map(self.code, names[: self.max_names]))}{more}"

    def item(self, label: str, text: str, nodes: Sequence[str]) -> str:
        """Return a row of a list."""
        listed = f", {self.names(nodes)}" if nodes else ""
        return f"{f'{self.code(label)}: ' if label else ''}{self.code(text)}{listed}"

    def line(self, group: ChangeGroup) -> str:
        """Return a group without its details."""
        codes = " ".join(map(self.code, wording.summary(group.difference, most=3)))
        role = f"({self.code(role)}) " if (role := wording.role_label(group)) else ""
        return f"- **{wording.group_count(group)}** {role}{codes}\n"

    def block(self, group: ChangeGroup, rows: Sequence[tuple[str, str]], rest: str, _: int) -> str:
        """Return a group with its details."""
        body = "\n".join(f"!{text[1:]}" if sign == "~" else text for sign, text in rows)
        fence = _fence(body, least=3)
        words = [wording.role_label(group), *wording.summary(group.difference, most=3)]
        codes = [f"<code>{escape(wording.cut(word, MAX_TEXT))}</code>" for word in words if word]
        return (
            f"<details><summary><b>{wording.group_count(group)}</b> {' '.join(codes)}</summary>\n\n"
            f"{self.names(group.nodes)}\n\n{fence}diff\n{body}\n{fence}\n\n"
            f"{f'{rest}{chr(10)}{chr(10)}' if rest else ''}</details>\n\n"
        )

    def rest(self, text: str) -> str:
        """Return what counts the groups that are left out."""
        return f"- {text}\n"


class HtmlForm:
    """HTML, with the names of the dashboard's styles."""

    room = HTML_MAX_BYTES
    max_rows, max_details = 10_000, 4_000_000
    max_lines, max_value = 400, MAX_VALUE

    def counts(self, result: PreviewResult) -> str:
        """Return the counts of nodes as tiles."""
        tiles = [
            ("quiet", result.nodes, "node" if result.nodes == 1 else "nodes"),
            *wording.counts(result),
        ]
        items = (
            f'<li class="card tone-{kind}"><b>{number:,}</b> {_text(words)}</li>'
            for kind, number, words in tiles
        )
        return f'<ul class="cards">{"".join(items)}</ul>'

    def listed(self, title: str, kind: str, items: Sequence[str], rest: str) -> str:
        """Return a list with a title; `rest` counts what is left out."""
        rows = "".join(f'<li class="item">{item}</li>' for item in items)
        more = f'<p class="quiet">{_text(rest)}</p>' if rest else ""
        listed = f'<ul class="list">{rows}</ul>' if rows else ""
        return (
            f'<section class="notice tone-{kind}"><h2>{_text(title)}</h2>{listed}{more}</section>'
        )

    def title(self, text: str) -> str:
        return f"<h2>{_text(text)}</h2>"

    def code(self, text: str) -> str:
        return f"<code>{_text(text)}</code>"

    def names(self, names: Sequence[str]) -> str:
        """Return names of nodes, folded if they are many."""
        listed = ", ".join(map(_text, names))
        if len(names) <= 3:
            return f'<p class="nodes">{listed}</p>'
        number = wording.count(len(names), "node")
        return f'<details class="nodes"><summary>{number}</summary><p>{listed}</p></details>'

    def item(self, label: str, text: str, nodes: Sequence[str]) -> str:
        """Return a row of a list."""
        code = self.code(label) if label else ""
        return f"{code} {_text(text)}{self.names(nodes) if nodes else ''}"

    def line(self, group: ChangeGroup) -> str:
        """Return a group without its details."""
        return self.block(group, (), "The details of this group are in the JSON form.", MAX_OPEN)

    def block(
        self, group: ChangeGroup, rows: Sequence[tuple[str, str]], rest: str, number: int
    ) -> str:
        """Return a group with its details."""
        codes = " ".join(map(self.code, wording.summary(group.difference, most=4)))
        diff = "\n".join(
            f'<span class="{_STYLES.get(sign, "same")}">{_text(text)}</span>' for sign, text in rows
        )
        return (
            f'<details class="item group"{" open" * (number < MAX_OPEN)}>'
            f"<summary><b>{_text(wording.group_label(group))}</b> {codes}</summary>"
            f"{self.names(group.nodes)}{f'<pre>{diff}</pre>' if rows else ''}"
            f"{f'<p>{_text(rest)}</p>' if rest else ''}</details>"
        )

    def rest(self, text: str) -> str:
        """Return what counts the groups that are left out."""
        return f"<p>{_text(text)}</p>"


def preview_markdown(result: PreviewResult) -> str:
    form = MarkdownForm()
    title = f"### Preview of {form.code(result.base.name)} → {form.code(result.head.name)}\n"
    part = f"\nPart {result.shard} of the nodes.\n" if result.shard else ""
    end = f"\n{wording.statistics(result)}\n"
    return f"{title}{part}{_drawn(result, form, used=_size(title + part + end))}{end}"


def preview_part(result: PreviewResult) -> str:
    """Return the preview as a part of an HTML page."""
    return f'<div class="preview diff">{_drawn(result, HtmlForm())}</div>'


def preview_html(result: PreviewResult) -> str:
    template = files("localpuppet.node.preview").joinpath("page.html").read_text("utf-8")
    page = Template(template).substitute(
        policy=_policy(template),
        title=_text(wording.revisions(result)),
        headline=_text(wording.headline(result)),
        body=preview_part(result),
        statistics=_text(wording.statistics(result)),
    )
    return page.encode("utf-8", "backslashreplace").decode()


def _policy(template: str) -> str:
    sources = []
    for kind, text in _BLOCK.findall(template):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        sources.append(f"{kind}-src 'sha256-{digest}'")
    return f"default-src 'none'; {'; '.join(sources)}; base-uri 'none'; form-action 'none'"


def _drawn(result: PreviewResult, form: MarkdownForm | HtmlForm, *, used: int = 0) -> str:
    start = "".join(_start(result, form))
    return f"{start}{_groups(result.groups, form, form.room - used - _size(start))}"


def _start(result: PreviewResult, form: MarkdownForm | HtmlForm) -> Iterator[str]:
    yield form.counts(result)
    room = int(form.room * _SHARE_OF_LISTS)
    for notice in (*wording.notices(result), *wording.overview(result)):
        most = min(form.max_rows, MAX_RESOURCES) if notice.noun == "resource" else form.max_rows
        items: list[str] = []
        for row in notice.rows[:most]:
            item = form.item(row.label, row.text, row.nodes)
            if room < _size(item):
                break  # a list without its end has one order
            room -= _size(item)
            items.append(item)
        left = len(notice.rows) - len(items)
        rest = f"and {wording.count(left, f'more {notice.noun}')}" if left > 0 else ""
        yield form.listed(notice.title, notice.kind, items, rest)


def _groups(groups: Sequence[ChangeGroup], form: MarkdownForm | HtmlForm, room: int) -> str:
    """Return the groups, as many with details as the room allows."""
    if not groups:
        return ""
    title = form.title("Changes")
    room -= _size(title) + _ROOM_FOR_REST
    lines: list[str] = []
    left = room * _SHARE_OF_LINES
    for group in groups:
        line = form.line(group)
        left -= _size(line)
        if left < 0:
            break
        lines.append(line)
    room -= sum(map(_size, lines))
    blocks: list[str] = []
    for number, (group, line) in enumerate(zip(groups, lines, strict=False)):
        block = form.block(group, *_details(group, form), number)
        room -= _size(block) - _size(line)
        if room < 0:
            break  # details are those of the first groups, so that the list has one order
        blocks.append(block)
    between = "\n" if 0 < len(blocks) < len(lines) else ""
    omitted = groups[len(lines) :]
    nodes = wording.count(sum(len(group.nodes) for group in omitted), "node")
    text = f"and {wording.count(len(omitted), 'more group')} with {nodes}"
    rest = form.rest(text) if omitted else ""
    return "".join([title, *blocks, between, *lines[len(blocks) :], rest])


def _details(
    group: ChangeGroup, form: MarkdownForm | HtmlForm
) -> tuple[Sequence[tuple[str, str]], str]:
    """Return the changes of a group as rows of `max_details` bytes, and what counts the rest."""
    rows: list[tuple[str, str]] = []
    room = form.max_details
    changes = [*wording.lines(group.difference)]
    for number, line in enumerate(changes):
        block = [*wording.rows(line, most=form.max_lines, longest=form.max_value)]
        room -= sum(_size(text) + 1 for _, text in block)
        if room < 0:
            if not rows:
                rows, number = block[: form.max_lines // 2], number + 1
            left = len(changes) - number
            return rows, f"and {wording.count(left, 'more change')}" if left else ""
        rows += block
    return rows, ""


def _fence(text: str, *, least: int) -> str:
    """Return backticks that no run of backticks in a text ends."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def _text(text: str) -> str:
    """Return text for an element: bounded, escaped, and each character shows."""
    return escape(wording.cut(text, MAX_VALUE))
