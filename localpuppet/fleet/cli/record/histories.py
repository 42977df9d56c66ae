"""Shows the runs of other nodes, for `history`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.records import to_record
from localpuppet.base.formats.times import show_duration
from localpuppet.fleet.cli.progress import shown, whom
from localpuppet.fleet.history.following import read_runs
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.fleet.wiring.fleet import FleetWiring, run
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run


def show_histories(node: NodeApp, nodes: Sequence[str], *, limit: int, as_json: bool) -> int:
    """Show what the bus has of the runs of nodes, and return the exit code.

    Args:
        node: The parts of this node.
        nodes: The names of the nodes.
        limit: How many runs of each node to show.
        as_json: Whether to print JSON.
    """
    names = [NodeName.parse(name) for name in dict.fromkeys(nodes)]
    runs, problems = run(_read(FleetWiring(node), names, as_json=as_json))
    if as_json:
        listed = {name: [*map(to_record, of[:limit])] for name, of in runs.items()}
        render.emit_json({"schema": 1, "histories": listed, "problems": problems})
    for name in () if as_json else names:
        if name in runs:
            _show(name, runs[name], limit)
        if name in problems:
            problem = render.user_text(problems[name])
            render.say(f"{name}: {render.word('failed')}: {problem}", err=True)
    return 1 if problems else 0


async def _read(
    fleet: FleetWiring, names: Sequence[NodeName], *, as_json: bool
) -> tuple[dict[NodeName, list[RunSummary]], dict[NodeName, str]]:
    """Return node → its runs, and node → why it has none."""
    runs: dict[NodeName, list[RunSummary]] = {}
    problems: dict[NodeName, str] = {}
    now = fleet.node.clock.now().timestamp()
    observer = render.observer(quiet=as_json, title=f"reading the history of {whom(names)}")
    async with shown(observer), fleet.connected() as kv:
        for name in names:
            try:
                found, problem = await read_runs(kv, name, fleet.verifier, now=now)
            except (IntegrityError, InvalidInputError) as error:
                found, problem = [], str(error)
            if found:
                runs[name] = found
            elif not problem:
                problem = "the bus has no run of it (see 'localpuppet nodes')"
            if problem:
                problems[name] = problem
    return runs, problems


def _show(name: NodeName, runs: Sequence[RunSummary], limit: int) -> None:
    render.emit(f"{name}: {render.counted(len(runs), 'run')} on the bus")
    rows = [_row(summary) for summary in runs[:limit]]
    # `report --node` needs whole ids, so a narrow terminal does not shorten them.
    render.emit(render.table(render_run.HISTORY, rows, width=render.columns(), spare=("TOOK",)))
    if len(runs) > limit:
        render.emit(f"{limit} of {len(runs)} runs; --limit shows more")


def _row(summary: RunSummary) -> tuple[str, ...]:
    started = datetime.fromtimestamp(summary.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    seconds = summary.finished_at - summary.started_at
    is_run = summary.outcome is not None
    times = f"{summary.times} times: " if summary.times > 1 else ""
    counts = render_run.resource_counts(summary.counts) if summary.counts.total else ""
    return (
        summary.run if is_run else "",
        started,
        show_duration(seconds) if is_run and seconds else "",
        render.word(str(summary.outcome or "refused"), noop=summary.noop),
        render.user_text(summary.release),
        times + (render.user_text(summary.reason) or counts),
    )
