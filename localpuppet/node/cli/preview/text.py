"""Shows a preview in a terminal: what fails first, then the groups of changes."""

from collections.abc import Iterator

import click

from localpuppet.base.formats.text import shown_names
from localpuppet.node.cli.preview import wording
from localpuppet.node.preview.difference import ParameterChange
from localpuppet.node.preview.grouping import NodeFailureGroup
from localpuppet.node.preview.result import FIXED, ChangeGroup, PreviewResult

MAX_GROUPS = 25
MAX_CHANGES = 15  # of a group
MAX_LINES = 20  # of a text
MAX_ROWS = 20  # of failures, blind spots and nodes
_COLORS = {"+": "green", "-": "red", "~": "yellow", "@": "cyan"}


def preview_text(result: PreviewResult) -> str:
    """Return the preview as text, with colours."""
    blocks = [
        [click.style(wording.headline(result), bold=True), wording.revisions(result)],
        *_failures(result),
        *_violations(result),
        *_blind_spots(result),
        *map(_group, result.groups[:MAX_GROUPS]),
        *_ending(result),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _failures(result: PreviewResult) -> Iterator[list[str]]:
    for title, kind, groups in wording.failures(result):
        color = "green" if kind == FIXED else "red"
        yield [
            click.style(f"{title}:", fg=color, bold=True),
            *(line for group in groups[:MAX_ROWS] for line in _failure(group)),
            *_more(len(groups) - MAX_ROWS, "error"),
        ]


def _failure(group: NodeFailureGroup) -> Iterator[str]:
    place = wording.failure_place(group)
    text = wording.failure_message(group)
    yield f"  {place}: {text}" if place else f"  {text}"
    yield click.style(f"    {shown_names(group.nodes)}", dim=True)


def _violations(result: PreviewResult) -> Iterator[list[str]]:
    if not result.violations:
        return
    yield [
        click.style("Forbidden by --fail-on:", fg="red", bold=True),
        *(
            f"  {wording.message(item.rule)}: {wording.message(item.reference)} "
            + click.style(f"on {shown_names(item.nodes)}", dim=True)
            for item in result.violations[:MAX_ROWS]
        ),
        *_more(len(result.violations) - MAX_ROWS, "forbidden change"),
    ]


def _blind_spots(result: PreviewResult) -> Iterator[list[str]]:
    if result.blind_spots:
        yield [
            click.style("Cannot tell what these files change:", fg="yellow", bold=True),
            *(
                f"  {wording.message(spot.file)}: {wording.message(spot.reason)} "
                + click.style(f"({wording.count(len(spot.nodes), 'node')})", dim=True)
                for spot in result.blind_spots[:MAX_ROWS]
            ),
            *_more(len(result.blind_spots) - MAX_ROWS, "file"),
        ]
    if rows := wording.impure(result):
        yield [
            click.style("May differ from run to run, whatever the change:", fg="yellow", bold=True),
            *(
                f"  {wording.message(reasons)}\n    {click.style(shown_names(nodes), dim=True)}"
                for reasons, nodes in rows[:MAX_ROWS]
            ),
            *_more(len(rows) - MAX_ROWS, "reason"),
        ]


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
    ending = [*map(wording.message, result.notes)]
    yield [*ending, click.style(wording.statistics(result), dim=True)]


def _more(number: int, noun: str) -> list[str]:
    if number <= 0:
        return []
    return [f"  and {wording.count(number, f'more {noun}')}; --json and --html show all"]
