"""`localpuppet rollout status`, `list` and `report`: print rollouts, from journals or the bus."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

import click

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.times import parse_time
from localpuppet.fleet.app import run
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, limit_option, option
from localpuppet.rollout.app import RolloutApp
from localpuppet.rollout.checkpoints import RolloutCheckpoint
from localpuppet.rollout.cli import rollout_text
from localpuppet.rollout.journal import JournalReader, Journals
from localpuppet.rollout.rollout_report import INTERRUPTED, RolloutReport, show_counts
from localpuppet.rollout.rollout_view import RolloutView, page

LOOK = 0.5  # seconds between two looks at the journal
SHOWN, MOST = 20, 500  # rollouts of the bus in a table, and as JSON
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
    if watch and (as_json or operator is not None):
        raise click.UsageError("--watch excludes --json and --operator")
    app, now = RolloutApp(node), node.clock.now()
    wanted = None if rollout is None else RolloutId.parse(rollout)
    if operator is not None:
        checkpoint = run(app.known_checkpoint(wanted, SignerName.parse(operator)))
        return _show_checkpoint(checkpoint, now=now, as_json=as_json)
    journal = app.journals.open(wanted)
    if watch:
        _watch(journal)
    report, now = journal.report(), node.clock.now()
    journal.close()
    for newer in _newer(app, [report]).values():
        return _show_checkpoint(newer, now=now, as_json=as_json, known=report.summary())
    if as_json:
        render.emit_json({"schema": 1, **report.summary()})
    elif watch:
        render.emit(rollout_text.outcome(report))
    else:
        render.emit(rollout_text.status(report, now))
    return 0 if report.succeeded or report.word in ("running", "paused") else 1


@command("list", exits={0: "success, whatever the results", 69: "the bus is unreachable"})
@option("--operator NAME", "The operator of the rollouts: list their checkpoints on the bus.")
@limit_option("rollouts", default=SHOWN)
@_JSON
@click.pass_obj
def list_command(node: NodeApp, operator: str | None, limit: int, as_json: bool) -> None:
    """List the rollouts of this machine, newest first.

    With --operator, list those on the bus. The bus keeps a rollout while it can be resumed, and
    its result for a week. A journal that localpuppet cannot read is shown as damaged.

    Examples:
      localpuppet rollout list
      localpuppet rollout list --json | jq '.rollouts[].state'
      localpuppet rollout list --operator alice
    """
    app = RolloutApp(node)
    if operator is not None:
        _list_checkpoints(app, SignerName.parse(operator), limit, as_json=as_json)
        return
    ids = app.journals.ids()
    reports = {
        rollout_id: _report_of(app.journals, rollout_id)
        for rollout_id in (ids if as_json else ids[:limit])
    }
    newer = _newer(app, [item for item in reports.values() if not isinstance(item, str)])
    rows = [
        {"id": rollout, "state": DAMAGED, "reason": report}
        if isinstance(report, str)
        else report.summary() | (newer[rollout].shown() if rollout in newer else {})
        for rollout, report in reports.items()
    ]
    if as_json:
        render.emit_json({"schema": 1, "rollouts": rows})
        return
    for report in reports.values():
        if isinstance(report, str):
            render.note(report)
    _print_rollouts(rows, older=len(ids) - limit, nothing="this machine has no rollout")


def _list_checkpoints(app: RolloutApp, owner: SignerName, limit: int, *, as_json: bool) -> None:
    checkpoints = run(app.known_checkpoints(owner, most=MOST))
    rows = [checkpoint.shown() for checkpoint in (checkpoints if as_json else checkpoints[:limit])]
    if as_json:
        render.emit_json({"schema": 1, "from_bus": True, "rollouts": rows})
        return
    rows = [{"caller": owner.caller, **row} for row in rows]
    older, nothing = len(checkpoints) - limit, f"the bus has no rollout of {owner}"
    _print_rollouts(rows, older=older, nothing=nothing)


def _print_rollouts(rows: list[dict[str, Any]], *, older: int, nothing: str) -> None:
    render.emit(rollout_text.rollout_rows(rows) if rows else nothing)
    if older > 0:
        render.note(f"{older} older ones: --limit or --json lists them")


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
    wanted = None if rollout is None else RolloutId.parse(rollout)
    report, now = RolloutApp(node).journals.open(wanted).report(), node.clock.now()
    if form == "json":
        render.emit_json(report.to_dict())
    elif form == "html":
        render.emit(page(report, now).removesuffix("\n"))
    else:
        render.emit(rollout_text.full(RolloutView.of(report, now)))


def _report_of(journals: Journals, rollout: RolloutId) -> RolloutReport | str:
    """Return the report of a rollout, or why its journal is unreadable."""
    try:
        return journals.open(rollout).report()
    except StateError as error:
        return str(error)


def _newer(app: RolloutApp, reports: Iterable[RolloutReport]) -> dict[RolloutId, RolloutCheckpoint]:
    """Return the checkpoints of interrupted local rollouts that continued on other machines.

    If the bus is unreachable, print a note and return nothing.
    """
    states = [report.state for report in reports if report.word == INTERRUPTED]
    if not states:
        return {}
    try:
        return run(app.newer_checkpoints(states, render.note))
    except LocalpuppetError as error:
        render.note(f"cannot tell whether interrupted rollouts continued elsewhere: {error}")
        return {}


def _show_checkpoint(
    checkpoint: RolloutCheckpoint,
    *,
    now: datetime,
    as_json: bool,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Print a checkpoint; as JSON, merged with what is `known`. Return the exit code."""
    if checkpoint.over and checkpoint.summary is None:
        raise InvalidInputError("is over", where=str(checkpoint.rollout))
    if not checkpoint.over and not checkpoint.events:
        raise InvalidInputError(
            "has a journal that is too large for the bus",
            where=str(checkpoint.rollout),
            hint="show it on the machine that controls it",
        )
    if as_json:
        render.emit_json({"schema": 1, "from_bus": True, **known, **checkpoint.shown()})
    elif (ended := checkpoint.summary) is not None:
        noop = ", changes nothing" if ended.noop else ""
        render.emit(render.hanging("", f"rollout {checkpoint.rollout} of {ended.title}{noop}"))
        why = f": {ended.reason}" if ended.reason else ""
        text = f"{rollout_text.coloured(ended.word)}{why} ({show_counts(ended.counts)})"
        render.emit(render.hanging("", text))
        render.say("# from the bus: its journal has the result of each node", err=True)
    else:
        report = RolloutReport.of(checkpoint.events, taken=True)
        render.emit(rollout_text.status(report, now, from_bus=True))
        render.say("# from the bus: it is unknown whether a process controls it", err=True)
    return 0 if checkpoint.summary is None or checkpoint.summary.succeeded else 1


def _watch(journal: JournalReader) -> None:
    """Show events until no process controls the rollout."""
    observer = render.observer(quiet=False, title="looking at the journal")
    moment = 0.0  # the time of the shown event, which may be old; after that, the current time
    progress = rollout_text.RolloutProgress(observer, lambda: moment)
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
