"""Writes a preview as one HTML file with a search, which loads nothing from elsewhere.

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

MAX_BYTES = 16_000_000  # of the details of all groups
MAX_VALUE = 4_000  # characters
MAX_LINES = 400  # of a text of several lines
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
        groups="".join(_groups(result.groups)),
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
        f'<li class="item">{_code(row.label) if row.label else ""} {_text(row.text)}'
        f"{_nodes(row.nodes) if row.nodes else ''}</li>"
        for row in notice.rows
    )
    title = _text(notice.title)
    return f'<section class="{notice.kind}"><h2>{title}</h2><ul>{rows}</ul></section>'


def _groups(groups: Sequence[ChangeGroup]) -> Iterator[str]:
    room = MAX_BYTES
    for number, group in enumerate(groups):
        details = "".join(_changes(group))
        room -= len(details)
        if room < 0:
            details = "<p>The details of this group are in the JSON form.</p>"
        is_open = " open" if number < MAX_OPEN else ""
        summary = " ".join(map(_code, wording.summary(group.difference, most=4)))
        yield (
            f'<details class="item group"{is_open}>'
            f"<summary><b>{_text(wording.group_label(group))}</b> {summary}</summary>"
            f"{_nodes(group.nodes)}{details}</details>"
        )


def _changes(group: ChangeGroup) -> Iterator[str]:
    for line in wording.lines(group.difference):
        yield (
            f'<div class="change {_KINDS[line.sign]}"><h3><span>{_KINDS[line.sign]}</span> '
            f"{_code(line.text)}</h3>"
        )
        if line.parameters:
            yield f"<dl>{''.join(map(_parameter, line.parameters))}</dl>"
        yield "</div>"


def _parameter(change: ParameterChange) -> str:
    rows = wording.diff_lines(change, most=MAX_LINES)
    name = f"<dt>{_code(change.name)}</dt>"
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


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _text(text: str) -> str:
    """Return text for an element: printable, bounded, escaped."""
    return escape(printable(shortened(text, MAX_VALUE)))
