"""`localpuppet rollout plan`: show what a rollout would do."""

from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.times import parse_duration
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, options
from localpuppet.node.cli.completion import complete_release
from localpuppet.rollout.cli.plan import show
from localpuppet.rollout.cli.rollout_run import selected, what_options
from localpuppet.rollout.cli.site_options import read_plan, without_collector

if TYPE_CHECKING:
    from localpuppet.fleet.requests.repeating import CatalogComparison

from collections.abc import Iterator, Mapping

from localpuppet.fleet.requests.repeating import CatalogComparison, by_change
from localpuppet.node.releases.difference import CatalogChanges

PATIENCE = "30m"

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


@command(
    "plan",
    exits={
        0: "every node reported",
        1: "a node failed or did not report",
        2: "an option or the site is invalid, or no node is selected",
        69: "the bus is unreachable",
    },
)
@what_options
@options(
    "Comparison",
    flag(
        "--catalogs", "Compile two catalogs on each node: with its own release, and with --release."
    ),
    option("--release RELEASE", "Compare with this release.", shell_complete=complete_release),
    option(
        "--wait-timeout TIME",
        "Wait at most TIME for a node, which may have to fetch the release.",
        default=PATIENCE,
        show_default=True,
    ),
)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def plan_command(node: NodeApp, /, as_json: bool, **given: Any) -> int:  # noqa: ANN401
    """Show what a release would change on which node.

    Without --catalogs, the command shows the order of the nodes, as 'localpuppet plan' does.

    With --catalogs, each node compiles two catalogs from its own input and facts, and reports which
    resources differ: their types, titles and parameter names, never values. The command applies
    nothing. Each node's policy must allow you `compile`.

    Examples:
      localpuppet rollout plan --role web
      localpuppet rollout plan --release shop/tags/r7 --catalogs
      localpuppet rollout plan --release shop/tags/r7 --catalogs --role web
      localpuppet rollout plan --release shop/tags/r7 --catalogs --json
    """
    release, catalogs = given["release"], given["catalogs"]
    if catalogs != (release is not None):
        raise click.UsageError("--catalogs and --release require each other")
    if not catalogs:
        if given["order"] != "site":
            raise click.UsageError(f"--order {given['order']} requires --catalogs")
        if given["without"]:
            raise click.UsageError("--without requires --catalogs")
        with without_collector():
            show(read_plan(node, given), "json" if as_json else None)
        return 0
    with without_collector():
        selection = selected(node, given, None)
    nodes = sorted({name for group in selection.groups for name in group})
    seconds = parse_duration(given["wait_timeout"], what="--wait-timeout")
    comparisons = _asked(node, nodes, ReleasePath.parse(release, where="--release"), seconds)
    if as_json:
        rows = [{"node": name, **_to_dict(answer)} for name, answer in comparisons.items()]
        render.emit_json({"schema": 1, "release": release, "nodes": rows})
    else:
        for line in lines(comparisons):
            render.emit(line)
    return 1 if any(answer.problem for answer in comparisons.values()) else 0


def _asked(
    node: NodeApp, nodes: list[NodeName], release: ReleasePath, seconds: float
) -> "dict[NodeName, CatalogComparison]":
    from localpuppet.fleet.cli.progress import shown
    from localpuppet.fleet.requests.repeating import compare_on
    from localpuppet.fleet.wiring.fleet import FleetWiring, run

    fleet = FleetWiring(node)

    async def ask() -> "dict[NodeName, CatalogComparison]":
        observer = render.observer(quiet=False, title=f"{len(nodes)} nodes compile")
        async with shown(observer), fleet.connected() as kv:
            client = fleet.requests(kv)
            async with client.together():
                return await compare_on(client, nodes, release, patience=seconds)

    return run(ask())


def _to_dict(answer: "CatalogComparison") -> dict[str, Any]:
    changes = None if answer.changes is None else answer.changes.to_dict()
    return {"ok": changes is not None, "error": answer.problem, **(changes or {})}
