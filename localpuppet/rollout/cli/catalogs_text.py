"""Print what a release would change on nodes."""

from collections.abc import Iterator, Mapping

import click

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.requests.comparing import CatalogComparison, by_change
from localpuppet.node.cli import render
from localpuppet.node.releases.difference import CatalogChanges

SHOWN = 20  # resources of nodes with the same changes


def lines(comparisons: Mapping[NodeName, CatalogComparison]) -> Iterator[str]:
    """Yield the counts of each node, then the resources, with nodes of equal changes together."""
    rows = [
        (
            node,
            *(str(len(part)) for part in (predicted.added, predicted.removed, predicted.changed)),
        )
        for node, answer in comparisons.items()
        if (predicted := answer.changes) is not None
    ]
    if rows:
        yield render.table(("NODE", "ADDED", "REMOVED", "CHANGED"), rows)
    for changes, nodes in by_change(comparisons):
        yield ""
        yield render.hanging("", click.style(", ".join(nodes), bold=True))
        yield from _resources(changes)
    for node, answer in comparisons.items():
        if answer.problem:
            yield render.hanging("", f"{node}: not known: {render.user_text(answer.problem)}")


def _resources(changes: CatalogChanges) -> Iterator[str]:
    rows = [_line("-", name, "red") for name in changes.removed]
    rows += [
        f"{_line('~', name, 'yellow')}: {', '.join(map(render.user_text, inner))}"
        for name, inner in changes.changed.items()
    ]
    rows += [_line("+", name, "green") for name in changes.added]
    for row in rows[:SHOWN]:
        yield render.hanging("  ", row)
    if changes.count > len(rows[:SHOWN]):
        yield f"  and {changes.count - len(rows[:SHOWN])} more; --json has all"
    if not changes.count:
        yield "  nothing changes"


def _line(sign: str, name: str, color: str) -> str:
    return f"{click.style(sign, fg=color)} {render.user_text(name)}"
