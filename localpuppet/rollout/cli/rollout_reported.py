"""`localpuppet rollout status`, `list` and `report`: print rollouts."""

import time
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.times import parse_time
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localpuppet.rollout.journal import JournalReader, Journals
    from localpuppet.rollout.rollout_report import RolloutReport

LOOK = 0.5  # seconds between two looks at the journal
SHOWN = 20
DAMAGED = "damaged"
_ID = click.argument("rollout", required=False, metavar="[ID]")
_JSON = flag("--json as_json", "Print JSON.")


@command(
    "status",
    exits={
        0: "the rollout is running or paused, or every node succeeded",
        1: "a node did not succeed, or no process controls the rollout",
        69: "the bus is unreachable",
    },
)
@_ID
@option("--operator NAME", "The operator of the rollout: show its checkpoint on the bus.")
@flag("--watch", "Show every change until the rollout is over.")
@_JSON
@click.pass_obj
def status_command(
    node: NodeApp, rollout: str | None, operator: str | None, watch: bool, as_json: bool
) -> int:
    """Show the state of a rollout.

    ID is the rollout; the default is the newest on this machine. The state comes from the journal
    on this machine. With --operator, or if the rollout continued on another machine, it comes from
    the bus, which does not know whether a process controls the rollout.

    Examples:
      localpuppet rollout status
      localpuppet rollout status --watch
      localpuppet rollout status --operator alice
    """
    from localpuppet.rollout.cli import rollout_bus
    from localpuppet.rollout.cli.rollout_text import failures, head, header, how_far, outcome
    from localpuppet.rollout.rollout_report import INTERRUPTED, OVERTAKEN
    from localpuppet.rollout.rollout_view import RolloutView

    if watch and (as_json or operator is not None):
        raise click.UsageError("--watch excludes --json and --operator")
    if operator is not None:
        return rollout_bus.show(node, rollout, SignerName.parse(operator), as_json=as_json)
    journal = _journal(node, rollout)
    if watch:
        _watch(journal)
    report, now = journal.report(), node.clock.now()
    journal.close()
    for newer in rollout_bus.newer_heads(node, [report]).values():
        return rollout_bus.show_head(newer, now=now, as_json=as_json, known=report.summary())
    if as_json:
        render.emit_json({"schema": 1, **report.summary()})
    else:
        if not watch:
            render.emit(render.hanging("", head(report.state)))
            if report.state.over is None:
                far = how_far(report.state, goes_on=report.word not in (INTERRUPTED, OVERTAKEN))
                render.emit(render.hanging("", far))
            render.emit(header(RolloutView.of(report, now)))
            for line in failures(report.state):
                render.emit(line)
        render.emit(outcome(report))
    return 0 if report.succeeded or report.word in ("running", "paused") else 1


@command("list", exits={0: "success, whatever the results", 69: "the bus is unreachable"})
@option("--operator NAME", "The operator of the rollouts: list their checkpoints on the bus.")
@_JSON
@click.pass_obj
def list_command(node: NodeApp, operator: str | None, as_json: bool) -> None:
    """List the rollouts of this machine, newest first.

    With --operator, list those on the bus. The bus keeps a rollout while it can be resumed, and
    its result for a week. A journal that localpuppet cannot read is shown as damaged.

    Examples:
      localpuppet rollout list
      localpuppet rollout list --json | jq '.rollouts[].state'
      localpuppet rollout list --operator alice
    """
    from localpuppet.rollout.cli import rollout_bus

    if operator is not None:
        rollout_bus.show_all(node, SignerName.parse(operator), as_json=as_json)
        return
    journals = _journals(node)
    ids = journals.ids()
    reports = {
        rollout_id: _report_of(journals, rollout_id)
        for rollout_id in (ids if as_json else ids[:SHOWN])
    }
    newer = rollout_bus.newer_heads(
        node, [item for item in reports.values() if not isinstance(item, str)]
    )
    elsewhere = {rollout_id: rollout_bus.summary(head) for rollout_id, head in newer.items()}
    if as_json:
        rollouts = [_summary(*pair, elsewhere) for pair in reports.items()]
        render.emit_json({"schema": 1, "rollouts": rollouts})
        return
    if not reports:
        render.emit("this machine has no rollout")
        return
    rollout_bus.show_rows(_summary(*pair, elsewhere) for pair in reports.items())
    for report in reports.values():
        if isinstance(report, str):
            render.say(f"# {render.user_text(report)}", err=True)
    if len(ids) > SHOWN:
        render.say(f"# {len(ids) - SHOWN} older ones: --json lists all", err=True)


@command("report", exits={0: "success, whatever the result of the rollout"})
@_ID
@option("--json form", "Print JSON.", flag_value="json")
@option("--html form", "Print one HTML file.", flag_value="html")
@click.pass_obj
def report_command(node: NodeApp, rollout: str | None, form: str | None) -> None:
    """Show which node ran when, and the results.

    ID is the rollout; the default is the newest on this machine. 'rollout status' has an exit code
    for the result.

    Examples:
      localpuppet rollout report
      localpuppet rollout report 20261122T110000Z-0a1b --json
      localpuppet rollout report --html > report.html
    """
    from localpuppet.rollout.cli.rollout_text import full
    from localpuppet.rollout.rollout_view import RolloutView

    report, now = _journal(node, rollout).report(), node.clock.now()
    if form == "json":
        render.emit_json(report.to_dict())
    elif form == "html":
        from localpuppet.rollout.report_page import page

        render.emit(page(report, now).removesuffix("\n"))
    else:
        render.emit(full(RolloutView.of(report, now)))


def _report_of(journals: "Journals", rollout: RolloutId) -> "RolloutReport | str":
    """Return the report of a rollout, or why its journal is unreadable."""
    try:
        return journals.open(rollout).report()
    except StateError as error:
        return str(error)


def _summary(
    rollout: RolloutId,
    report: "RolloutReport | str",
    elsewhere: "Mapping[RolloutId, Mapping[str, Any]]",
) -> "Mapping[str, Any]":
    """Return the JSON form of a rollout in the list."""
    if isinstance(report, str):
        return {"id": rollout, "state": DAMAGED, "reason": report}
    return report.summary() | dict(elsewhere.get(rollout, {}))


def _journals(node: NodeApp) -> "Journals":
    from localpuppet.rollout.wiring.rollout import FleetRollouts

    return FleetRollouts(node).journals


def _journal(node: NodeApp, rollout: str | None) -> "JournalReader":
    return _journals(node).open(None if rollout is None else RolloutId.parse(rollout))


def _watch(journal: "JournalReader") -> None:
    """Show events until no process controls the rollout."""
    from localpuppet.rollout.cli.rollout_text import RolloutProgress

    observer = render.observer(quiet=False, title="looking at the journal")
    moment = 0.0  # the time of the shown event, which may be old; after that, the current time
    progress = RolloutProgress(observer, lambda: moment)
    observer.begin()
    shown, begun = 0, time.monotonic()
    try:
        while True:
            taken = journal.taken
            events = journal.events()
            for at, event in events[shown:]:
                moment = parse_time(at).timestamp()
                progress.take(event)
            shown, moment = len(events), time.time()
            if not taken:
                return
            observer.tick(time.monotonic() - begun)
            time.sleep(LOOK)
    finally:
        observer.close()
