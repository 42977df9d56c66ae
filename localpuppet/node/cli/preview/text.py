"""Shows a preview in a terminal: what fails first, then the groups of changes."""

from collections.abc import Iterator

import click

from localpuppet.base.formats.text import shown_names
from localpuppet.node.cli.preview import wording
from localpuppet.node.preview.difference import ParameterChange
from localpuppet.node.preview.result import ChangeGroup, PreviewResult

MAX_GROUPS = 25
MAX_CHANGES = 15  # of a group
MAX_LINES = 20  # of a text
MAX_ROWS = 20  # of failures, blind spots and nodes
_KINDS = {wording.GOOD: "green", wording.WARNING: "yellow", wording.BAD: "red"}
_COLORS = {"+": "green", "-": "red", "~": "yellow", "@": "cyan"}


def preview_text(result: PreviewResult) -> str:
    """Return the preview as text, with colours."""
    blocks = [
        [click.style(wording.headline(result), bold=True), wording.revisions(result)],
        *map(_notice, wording.notices(result)),
        *map(_group, result.groups[:MAX_GROUPS]),
        *_ending(result),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _notice(notice: wording.PreviewNotice) -> list[str]:
    block = [click.style(f"{notice.title}:", fg=_KINDS[notice.kind], bold=True)]
    for row in notice.rows[:MAX_ROWS]:
        block.append(f"  {row.label}: {row.text}" if row.label else f"  {row.text}")
        if row.nodes:
            block.append(click.style(f"    {shown_names(row.nodes)}", dim=True))
    return [*block, *_more(len(notice.rows) - MAX_ROWS, notice.noun)]


def _group(group: ChangeGroup) -> list[str]:
    changes = [*wording.lines(group.difference)]
    head = click.style(wording.group_label(group), bold=True)
    block = [f"{head}  {click.style(shown_names(group.nodes), dim=True)}"]
    for line in changes[:MAX_CHANGES]:
        block.append(click.style(f"  {line.sign} {line.text}", fg=_COLORS[line.sign]))
        if line.sign == "~":
            block += [row for change in line.parameters for row in _parameter(change)]
    return [*block, *_more(len(changes) - MAX_CHANGES, "change")]


def _parameter(change: ParameterChange) -> Iterator[str]:
    rows = wording.diff_lines(change, most=MAX_LINES)
    name = wording.message(change.name)
    if not rows:
        before, after = wording.values(change)
        both = f"{before} → {after}" if before != after else f"{after} differs"
        yield f"      {name}: {both}"
        return
    yield f"      {name}:"
    for row in rows:
        yield click.style(f"        {row}", fg=_COLORS.get(row[:1]))


def _ending(result: PreviewResult) -> Iterator[list[str]]:
    rest = result.groups[MAX_GROUPS:]
    if rest:
        nodes = wording.count(sum(len(group.nodes) for group in rest), "node")
        yield [f"and {wording.count(len(rest), 'more group')} with {nodes}"]
    yield [click.style(wording.statistics(result), dim=True)]


def _more(number: int, noun: str) -> list[str]:
    if number <= 0:
        return []
    return [f"  and {wording.count(number, f'more {noun}')}; --json and --html show all"]
