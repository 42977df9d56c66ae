"""`localpuppet status`: how a run stands, how the last one ended, whether the node is on hold."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.wiring.confirmations import confirmation_of
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.completion import RunCommand, complete_run
from localpuppet.node.cli.node_options import node_option, only_here
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import State, Status
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from localpuppet.fleet.exports.choosing import LeftOut
    from localpuppet.node.releases.ledger import Rollback
    from localpuppet.node.runs.attempt import Attempt
    from localpuppet.node.runs.hold import Hold

# Exported resources that are named, of those that a run left out.
SHOWN = 3


@click.command(
    "status",
    cls=RunCommand,
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
        from localpuppet.fleet.cli.asking import ask_nodes
        from localpuppet.fleet.requests.status import StatusRequest

        return ask_nodes(node, nodes, "status", StatusRequest(), as_json=as_json)
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    seconds = None if timeout is None else parse_duration(timeout, what="timeout")
    records = node.records
    status: Status | None = None
    left_out: list[LeftOut] = []
    more = 0
    if run is not None or records.ids():
        directory = records.get(run)
        status = records.status(directory)
        if wait:
            status = _wait(
                records, directory, seconds, sleep=node.processes.sleep, clock=node.clock
            )
        left_out, more = _left_out(directory)
    holds = node.holds(ask=False).active()
    rollback = node.rollback()
    confirmation = confirmation_of(node)
    attempt = None if run is not None else _later(node, status)
    memory = node.fork_server_memory()
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "run": status.to_dict() if status else None,
                "holds": [hold.to_dict() for hold in holds],
                "rollback": rollback.to_public() if rollback else None,
                "confirmation": confirmation.to_public() if confirmation else None,
                "attempt": attempt.to_dict() if attempt else None,
                "left_out": [asdict(one) for one in left_out],
                "more_left_out": more,
                "fork_server": None if memory is None else {"memory": memory},
            }
        )
    else:
        now = node.clock.now()
        rows = _around(holds, rollback, attempt, _named(left_out, more), now=now)
        if confirmation is not None and confirmation.concerns(rolled_back=rollback is not None):
            rows.append(("Unconfirmed", click.style(render.user_text(confirmation), fg="yellow")))
        if memory is not None:
            rows.append(("Fork server", f"{memory / 2**20:.0f} MiB"))
        _show(status, rows, now=now)
    if status is None:
        return 0
    if status.state is not State.FINISHED:
        return 75 if wait else 0
    return 0 if status.succeeded else 1


def _around(
    holds: "Sequence[Hold]",
    rollback: "Rollback | None",
    attempt: "Attempt | None",
    left_out: str,
    *,
    now: "datetime",
) -> list[tuple[str, str]]:
    """Return what is shown beside the run, labelled."""
    rows = [("On hold", click.style(hold.shown(now), fg="yellow")) for hold in holds]
    if any(hold.is_misdated(now) for hold in holds):
        rows.append(("Warning", "a hold has a wrong deadline: 'localpuppet enable --all' ends it"))
    if rollback is not None:
        rows.append(("Rollback", click.style(render.user_text(rollback), fg="yellow")))
    if attempt is not None:
        rows.append(("Last attempt", click.style(render_run.refused(attempt, now), fg="red")))
    if left_out:
        rows.append(("Left out", click.style(left_out, fg="yellow")))
    return rows


def _show(status: Status | None, rows: list[tuple[str, str]], *, now: "datetime") -> None:
    if status is None:
        render.emit("no run yet; 'localpuppet apply' starts one")
    else:
        rows = [*render_run.rows(status, now), *rows]
    if rows:
        render.emit(render.pairs(rows))


def _left_out(run: RunDirectory) -> "tuple[list[LeftOut], int]":
    """Return what the collectors of a run asked for and did not get, and how much else."""
    if not run.collected.exists():  # most runs have none, and reading one costs 20 ms of imports
        return [], 0
    from localpuppet.fleet.exports.recording import read_collected

    collected = read_collected(run)
    named = [left for one in collected for left in one.left_out]
    return named, sum(one.more_left_out for one in collected)


def _named(left_out: "Sequence[LeftOut]", more: int) -> str:
    if not left_out:
        return ""
    named = [f"{one_line(one.ref)} of {one.node}" for one in left_out[:SHOWN]]
    rest = len(left_out[SHOWN:]) + more
    if rest:
        named.append(f"{rest} more")
    return f"{', '.join(named)}: 'localpuppet why' says the reasons"


def _later(node: NodeWiring, status: Status | None) -> "Attempt | None":
    """Return the last attempt, when it is newer than the newest run."""
    attempt = node.attempts.newest()
    return attempt if attempt and (status is None or attempt.at > status.started_at) else None


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
