"""`localpuppet kicks`: show which roles make which others run, and the cycles among them."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import UnavailableError
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from localpuppet.fleet.app import FleetApp
    from localpuppet.fleet.edges.cycles import Relations

# Seconds after which no further queries of nodes are evaluated; the rest is counted.
LOOK = 60.0
REASONS = ("kick", "query", "collect", "trigger")
_WORDS = {
    "kick": "is kicked",
    "query": "asks about it",
    "collect": "collects from it",
    "trigger": "was triggered",
}


@command(
    "kicks",
    exits={
        1: "with --check: there is a cycle",
        69: "the inventory is unreachable, --check took too long, or Graphviz is missing",
    },
)
@flag("--check", "Exit 1 if there is a cycle.")
@option(
    "--by reasons",
    "Show only relations of this kind (repeatable).  [default: all]",
    multiple=True,
    type=click.Choice(REASONS),
)
@option("--json form", "Print JSON.", flag_value="json")
@option("--svg form", "Print a picture (requires Graphviz).", flag_value="svg")
@option("--dot form", "Print DOT text for Graphviz.", flag_value="dot")
@click.pass_obj
def kicks_command(node: NodeApp, check: bool, reasons: tuple[str, ...], form: str | None) -> None:
    """Show which roles make which others run, and cycles.

    A kick is a trigger that a catalog sends, with a 'kick' resource, to the nodes with a role. A
    node also makes another run by data that the other queries or collects, or by a trigger. The
    command reads kicks, queries and collectors from each node's last good run, and the triggers
    that caused that run.

    In a cycle, nodes make each other run. Each chain of runs ends by itself, but a new kick starts
    another round.

    Examples:
      localpuppet kicks
      localpuppet kicks --check                              in a pipeline
      localpuppet kicks --check --by kick --by trigger
      localpuppet kicks --svg > kicks.svg
      localpuppet kicks --json | jq .cycles
    """
    from localpuppet.fleet.app import FleetApp, run

    kick_relations = run(_read_relations(FleetApp(node), reasons or REASONS))
    if form == "json":
        render.emit_json(kick_relations.to_dict())
    elif form in ("svg", "dot"):
        from localpuppet.rollout.diagram import kick_diagram
        from localpuppet.rollout.svg import render_diagram

        render.emit(render_diagram(kick_diagram(kick_relations), form))
    else:
        _show(kick_relations)
    if check and kick_relations.cycles:
        raise click.exceptions.Exit(1)
    if kick_relations.unanswered:
        problem = f"{kick_relations.unanswered} kicks and queries took too long to evaluate"
        if check:
            raise UnavailableError(f"{problem}: there may be a cycle", where="inventory")
        render.say(f"# {problem}: there may be more", err=True)


async def _read_relations(inventory: "FleetApp", reasons: Sequence[str]) -> "Relations":
    from localpuppet.fleet.edges.cycles import relations
    from localpuppet.fleet.edges.links import LinkReason, links_of

    end = time.monotonic() + LOOK
    async with inventory.entries.reader(render.note) as view:
        links = inventory.entries.ask(
            view, lambda reader: links_of(reader, lambda: time.monotonic() > end)
        ).answer
    return relations(links, by=tuple(map(LinkReason, reasons)))


def _show(kick_relations: "Relations") -> None:
    if kick_relations.edges:
        reasons: dict[tuple[str, str], list[str]] = {}
        for edge in kick_relations.edges:
            reasons.setdefault((edge.start, edge.end), []).append(_WORDS[str(edge.by)])
        rows = [
            (render.user_text(start), render.user_text(end), ", ".join(why))
            for (start, end), why in reasons.items()
        ]
        render.emit(render.table(("CHANGES", "RUNS THEN", "BECAUSE IT"), rows, spare=()))
    else:
        render.emit("no node kicks, queries, collects from or triggers another node")
    for cycle in kick_relations.cycles:
        ends = " (it ends when an answer stays the same)" if cycle.settles else ""
        render.emit(render.hanging("", f"cycle: {render.user_text(cycle.shown)}{ends}"))
    for note in kick_relations.notes:
        render.say(f"# {note}", err=True)
