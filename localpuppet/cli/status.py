"""`localpuppet status`: how a run stands, how the last one ended, whether the node is on hold."""

from collections.abc import Callable

import click

from localpuppet.cli import render, render_run
from localpuppet.cli.completion import complete_run
from localpuppet.cli.node_options import node_option, only_here
from localpuppet.formats.times import parse_duration
from localpuppet.machine.ports import Clock
from localpuppet.runs.records import Records, RunDirectory
from localpuppet.runs.run import State, Status
from localpuppet.wiring.node import NodeWiring


@click.command(
    "status",
    short_help="Show how a run stands, and what holds this node.",
    epilog="""\b
Examples:
  localpuppet status                          the newest run, and the holds
  localpuppet status --wait --timeout 10m     wait for it
  localpuppet status --json | jq -r .run.outcome
  localpuppet status --node web01.example.com     ask its agent

Exit code: 0 while a run goes on, after a success, or before the first run; 1 after a failure.
With --wait and --timeout, 75 when the run goes on. Of other nodes: 0 when every one answered, 1
when one refused, 69 when one was silent.
""",
)
@click.argument("run", required=False, shell_complete=complete_run)
@click.option("--wait", is_flag=True, help="Wait until the run has finished.")
@click.option("--timeout", metavar="TIME", help="With --wait: give up after this time (90, 30m).")
@node_option(required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def status_command(
    node: NodeWiring,
    run: str | None,
    wait: bool,
    timeout: str | None,
    nodes: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show how RUN (default: the newest) stands, and what holds this node.

    With --node, show how other nodes are; their policies must allow you `status`.
    """
    only_here(nodes, RUN=run, __wait=wait, __timeout=timeout)
    if nodes:
        from localpuppet.cli.asking import ask_nodes
        from localpuppet.requests.request import Nothing

        return ask_nodes(node, nodes, "status", Nothing(), as_json=as_json)
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    seconds = None if timeout is None else parse_duration(timeout, what="timeout")
    records = node.records
    status: Status | None = None
    if run is not None or records.ids():
        directory = records.get(run)
        status = records.status(directory)
        if wait:
            status = _wait(
                records, directory, seconds, sleep=node.processes.sleep, clock=node.clock
            )
    holds = node.holds(ask=False).active()
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "run": status.to_dict() if status else None,
                "holds": [hold.to_dict() for hold in holds],
            }
        )
    else:
        on_hold = [("On hold", click.style(str(hold), fg="yellow")) for hold in holds]
        if status is None:
            render.emit("no run yet; 'localpuppet apply' starts one")
            if on_hold:
                render.emit(render.pairs(on_hold))
        else:
            render.emit(render.pairs([*render_run.rows(status, node.clock.now()), *on_hold]))
    if status is None:
        return 0
    if status.state is not State.FINISHED:
        return 75 if wait else 0
    return 0 if status.outcome and status.outcome.success else 1


def _wait(
    records: Records,
    run: RunDirectory,
    seconds: float | None,
    *,
    sleep: Callable[[float], None],
    clock: Clock,
) -> Status:
    observer = render.observer(quiet=False, title=f"waiting for {run.id}")
    observer.begin()
    try:
        return records.wait(run, sleep=sleep, clock=clock, timeout=seconds, tick=observer.tick)
    finally:
        observer.close()
