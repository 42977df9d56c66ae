"""`localpuppet status`: the current or last run, and the holds of the node."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from localpuppet.base.formats.times import parse_duration
from localpuppet.base.machine.ports import Clock
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import OPTION, command, flag, only_here, option, selects_nodes
from localpuppet.node.cli.node_setup import RunCommand, complete_run
from localpuppet.node.node_ports import NodeSelection
from localpuppet.node.runs.run import RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory

if TYPE_CHECKING:
    from datetime import datetime

    from localpuppet.node.releases.release_records import Rollback
    from localpuppet.node.runs.holds import Hold
    from localpuppet.node.runs.run import Attempt


@command(
    "status",
    RunCommand,
    exits={
        0: "the run is active or succeeded, or no run exists; every node answered",
        1: "the run failed (of noop runs, the last real run before them); a node refused to answer",
        69: "a node did not answer",
        75: "the run is still active after --wait-timeout",
    },
)
@click.argument("run", required=False, shell_complete=complete_run)
@flag("--wait", "Wait until the run has finished.")
@option("--wait-timeout TIME", "With --wait: wait at most TIME.  [default: no limit]")
@selects_nodes(OPTION)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def status_command(
    node: NodeApp,
    run: str | None,
    wait: bool,
    wait_timeout: str | None,
    selection: NodeSelection,
    as_json: bool,
) -> int:
    """Show the current or last run, and the holds.

    RUN is the beginning or end of an id, or -1 for the run before the newest. With --node, show
    the status of other nodes; their policies must allow you `status`.

    Examples:
      localpuppet status                             the newest run, and the holds
      localpuppet status --wait --wait-timeout 10m   wait for the run
      localpuppet status --json | jq -r .run.outcome
      localpuppet status --node web01.example.com    ask another node's agent
    """
    only_here(selection, RUN=run, __wait=wait, __wait_timeout=wait_timeout)
    if selection:
        return node.additions.ask(selection, "status", as_json=as_json)
    if wait_timeout is not None and not wait:
        raise click.UsageError("--wait-timeout requires --wait")
    seconds = None if wait_timeout is None else parse_duration(wait_timeout, where="--wait-timeout")
    records = node.records
    status: Status | None = None
    directory: RunDirectory | None = None
    if run is not None or records.ids():
        directory = records.get(run)
        status = records.status(directory)
        if wait:
            status = _wait(
                records, directory, seconds, sleep=node.processes.sleep, clock=node.clock
            )
    real = status if run is not None or status is None else records.last_without_noop(status)
    applied = None if real is status else real
    holds = node.holds(ask=False).active()
    rollback = node.rollback_in_force()
    addition = node.additions.status(directory, rolled_back=rollback is not None)
    attempt = None if run is not None else _later(node, status)
    memory = node.fork_server_memory()
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "run": status.to_dict() if status else None,
                "applied": applied.to_dict() if applied else None,
                "holds": [hold.to_dict() for hold in holds],
                "rollback": rollback.to_public() if rollback else None,
                "attempt": attempt.to_dict() if attempt else None,
                "fork_server": None if memory is None else {"memory_bytes": memory},
                **addition.fields,
            }
        )
    else:
        now = node.clock.now()
        release = real.release if real else ""
        rows = [*_around(holds, rollback, attempt, applied=release, now=now), *addition.rows]
        if memory is not None:
            rows.append(("Fork server", f"{memory / 2**20:.0f} MiB"))
        failing = "" if run is not None else _failing(records, applied or status)
        _show(status, rows, applied=applied, failing=failing, now=now)
    if status is None:
        return 0
    if status.state is not RunState.FINISHED:
        return 75 if wait else 0
    return 0 if (applied or status).succeeded else 1


def _around(
    holds: "Sequence[Hold]",
    rollback: "Rollback | None",
    attempt: "Attempt | None",
    *,
    applied: str,
    now: "datetime",
) -> list[tuple[str, str]]:
    """Return the labelled rows besides those of the run."""
    rows = [("On hold", click.style(hold.shown(now), fg="yellow")) for hold in holds]
    if any(hold.is_misdated(now) for hold in holds):
        rows.append(
            ("Warning", "a hold has a wrong deadline: 'localpuppet enable --all-owners' ends it")
        )
    if rollback is not None:
        text = render.user_text(rollback)
        if applied != str(rollback.release):
            text += "; 'localpuppet apply' runs it"
        rows.append(("Rollback", click.style(text, fg="yellow")))
    if attempt is not None:
        rows.append(("Last attempt", click.style(render_run.refused(attempt, now), fg="red")))
    return rows


def _failing(records: Records, status: Status | None) -> str:
    """Return since when runs have failed, if several have in a row; empty otherwise."""
    if status is None:
        return ""
    streak = records.streak(status)
    since = f"since {render_run.moment(streak.since)}, {streak.runs} runs in a row"
    return since if streak.runs > 1 else ""


def _show(
    status: Status | None,
    rows: list[tuple[str, str]],
    *,
    applied: Status | None,
    failing: str,
    now: "datetime",
) -> None:
    if status is None:
        render.emit("no run yet; 'localpuppet apply' starts one")
    else:
        shown = "" if applied is None else render_run.applied(applied, now)
        around = [
            ("Applied", shown),
            ("Failing", failing),
            ("Next", render_run.next_command(status)),
        ]
        rows = [*render_run.rows(status, now), *around, *rows]
    if rows:
        render.emit(render.pairs(rows))


def _later(node: NodeApp, status: Status | None) -> "Attempt | None":
    """Return the last attempt if it is newer than the newest run."""
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
