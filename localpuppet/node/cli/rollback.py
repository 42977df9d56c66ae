"""`localpuppet rollback`: return to an earlier good release, with its node document."""

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.apply import user
from localpuppet.node.cli.command import command, flag, option
from localpuppet.node.cli.completion import complete_tag
from localpuppet.node.cli.hold import refresh_metrics
from localpuppet.node.releases.ledger import Ledger


@command("rollback", exits={1: "", 3: "", 69: "", 75: ""})
@option(
    "--to tag TAG",
    "Switch to this release.  [default: the previous good one]",
    shell_complete=complete_tag,
)
@flag("--end", "End the rollback: the input decides again.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def rollback_command(node: NodeApp, tag: str | None, end: bool, as_json: bool) -> None:
    """Switch this node to an earlier release.

    The next run applies that release, with the classes and parameters of its last good run on this
    node. The rollback stays in force, also for the timer, until the input changes or you run
    'localpuppet rollback --end'. A second rollback switches to the release before.

    If the release is no longer on this node, localpuppet fetches and verifies it first.

    Examples:
      localpuppet rollback && localpuppet apply
      localpuppet rollback --to r1
      localpuppet rollback --end               follow input.yaml again
    """
    ledger = Ledger(node.settings.state)
    if end:
        _end(node, ledger, as_json)
        return
    from localpuppet.node.runs.rollback_service import RollbackService

    kept = node.store.locks.take_for_run()
    try:
        rollback, left, ended = RollbackService(node.good_runs, ledger).go_back(
            node.inputs.read(str(node.settings.input)),
            tag=tag,
            user=user(),
            now=node.clock.now(),
            ensure=lambda app: node.provider.ensure_present(app, node.note),
        )
    finally:
        kept.release()
    refresh_metrics(node)
    if as_json:
        render.emit_json({"schema": 1, "from": left, **rollback.to_public()})
        return
    ran = render_run.moment(ended)
    render.emit(f"rolled back from {left} to {rollback.release}, as it ran on {ran}")
    render.emit("'localpuppet apply' runs it; a changed input or a new assignment ends it")


def _end(node: NodeApp, ledger: Ledger, as_json: bool) -> None:
    rollback = ledger.rollback()
    ledger.end_rollback()
    refresh_metrics(node)
    if as_json:
        render.emit_json({"schema": 1, "ended": rollback.to_public() if rollback else None})
    elif rollback is None:
        render.emit("there was no rollback; the input decides")
    else:
        render.emit(f"ended: {rollback}")
        render.emit("the input decides again; 'localpuppet apply' runs it")
