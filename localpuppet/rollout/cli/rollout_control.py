"""The commands that print rollouts, from journals or the bus, and that send decisions."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import click

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.names import NodeName, RolloutId, SignerName
from localpuppet.base.formats.times import parse_time
from localpuppet.fleet.app import run
from localpuppet.fleet.cli.requests import shown
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import (
    command,
    confirm,
    confirmation_options,
    flag,
    limit_option,
    option,
)
from localpuppet.rollout import commands
from localpuppet.rollout.app import RolloutApp
from localpuppet.rollout.checkpoints import RolloutCheckpoint
from localpuppet.rollout.cli import rollout_text
from localpuppet.rollout.cli.rollout import id_argument, operator_option, parse_names
from localpuppet.rollout.journal import JournalReader, Journals
from localpuppet.rollout.rollout_report import INTERRUPTED, RolloutReport, show_counts
from localpuppet.rollout.rollout_view import RolloutView, page
from localpuppet.rollout.state import RolloutState

LOOK = 0.5  # seconds between two looks at the journal
SHOWN, MOST = 20, 500  # rollouts of the bus in a table, and as JSON
DAMAGED = "damaged"
_JSON = flag("--json as_json", "Print JSON.")


@command(
    "status",
    exits={
        0: "the rollout is running or paused, or every node succeeded",
        1: "a node did not succeed, or no process controls the rollout",
        69: "the bus is unreachable",
    },
)
@id_argument
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
@id_argument
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


_EXITS = {
    0: "the controller accepted it",
    2: "there is no such rollout, or its controller rejected the command",
    69: "the controller did not answer",
}


def _send(
    node: NodeApp,
    word: str,
    rollout: str | None,
    operator: str | None,
    *,
    about: Callable[[RolloutState], str] = lambda _: "",
) -> JournalReader | None:
    """Send a command to a rollout's controller on any machine; without one, return its journal."""
    app, decision = RolloutApp(node), commands.RolloutCommand(word)
    wanted, owner = parse_names(rollout, operator)

    async def send() -> JournalReader | None:
        found, journal = await app.addressed(wanted, owner)
        if journal is None:
            await app.send(decision, found, owner, about=about)
        elif not journal.taken:
            return journal
        else:
            sent = app.sent(decision, about(journal.state()))
            async with shown(render.observer(quiet=False, title="waiting for the controller")):
                await commands.send_here(journal, sent)
            journal.close()
        return None

    return run(send())


def _decide(
    node: NodeApp,
    word: str,
    rollout: str | None,
    operator: str | None,
    *,
    done: str,
    about: Callable[[RolloutState], str] = lambda _: "",
) -> None:
    """Send a command, see `_send`, and print that it is done."""
    journal = _send(node, word, rollout, operator, about=about)
    if journal is not None:
        state = journal.state()
        commands.check_not_over(commands.RolloutCommand(word), state)
        raise InvalidInputError(
            "no process controls it",
            where=str(state.began.id),
            hint=f"run 'localpuppet rollout resume {state.began.id}'",
        )
    render.emit(done)


@command("pause", exits=_EXITS)
@id_argument
@operator_option
@click.pass_obj
def pause_command(node: NodeApp, rollout: str | None, operator: str | None) -> None:
    """Pause a running rollout.

    ID is the rollout; the default is your newest. No further nodes start, active runs
    finish and are checked, and all nodes stay on hold. 'rollout resume' continues the rollout and
    accepts no failures. If you do not decide within --pause-at-most of 'rollout run', the rollout
    stops.

    Examples:
      localpuppet rollout pause
      localpuppet rollout pause 20261122T110000Z-0a1b
      localpuppet rollout pause 20261122T110000Z-0a1b --operator alice
    """
    done = "paused: running nodes finish, and 'localpuppet rollout resume' continues it"
    _decide(node, "pause", rollout, operator, done=done)


@command("rollback", exits={**_EXITS, 1: "you answered no"})
@id_argument
@operator_option
@confirmation_options
@click.pass_obj
def rollback_command(
    node: NodeApp, rollout: str | None, operator: str | None, dry_run: bool, yes: bool
) -> None:
    """Roll the nodes of a rollout back.

    ID is the rollout; the default is your newest. It must have been started with
    --release. No further nodes start, active runs finish, and then each node that took the release
    runs its previous one.

    Examples:
      localpuppet rollout rollback
      localpuppet rollout rollback 20261122T110000Z-0a1b --yes
      localpuppet rollout rollback 20261122T110000Z-0a1b --dry-run
    """
    if dry_run or not yes:
        rollout, step = _describe_rollback(node, rollout, operator)
        if dry_run:
            render.emit(f"would {step}")
            return
        confirm(step, yes=yes)
    done = "rollback requested: running nodes finish first"
    _decide(node, "rollback", rollout, operator, done=done)


def _describe_rollback(node: NodeApp, rollout: str | None, operator: str | None) -> tuple[str, str]:
    """Return the id of the rollout, and what a rollback does."""
    found, state = run(RolloutApp(node).rollback_of(*parse_names(rollout, operator)))
    if state is None:
        return str(found), f"roll back rollout {found}"
    commands.check_not_over(commands.RolloutCommand.ROLLBACK, state)
    sent = commands.SentCommand(command=commands.RolloutCommand.ROLLBACK, caller="", machine="")
    if reason := commands.refusal(sent, state):
        raise InvalidInputError(reason, where=str(found))
    nodes = render.counted(len(state.took), "node")
    return str(found), f"roll back rollout {found} ({nodes} started so far)"


@command(
    "approve",
    exits={
        0: "the changes are approved",
        2: "the node does not wait for an approval",
        69: "the controller did not answer",
    },
)
@click.argument("rollout", metavar="ID")
@click.argument("node_name", metavar="NODE")
@option(
    "--difference wanted DIGEST", "Approve only this difference, which 'status' and 'report' show."
)
@operator_option
@click.pass_obj
def approve_command(
    node: NodeApp, rollout: str, node_name: str, wanted: str | None, operator: str | None
) -> None:
    r"""Approve changes of a node beyond the approved ones.

    The command shows what it approves: the changes of NODE in the rollout ID. The node then
    compares once more. If it would change even more, the rollout waits again. The rollout's journal
    records your name.

    Examples:
      localpuppet rollout approve 20261122T110000Z-0a1b web01.example.com
      localpuppet rollout approve --difference 1d899382700659a1 \
          20261122T110000Z-0a1b web01.example.com
    """
    about = partial(_show_difference, NodeName.parse(node_name), wanted)
    done = "approved: the node compares once more, and runs if nothing else differs"
    _decide(node, "approve", rollout, operator, about=about, done=done)


def _show_difference(name: NodeName, wanted: str | None, state: RolloutState) -> str:
    """Show what a node would change, and return what the approval refers to."""
    waiting = {turn.node: turn for turn in state.differing}
    if name not in waiting:
        raise InvalidInputError("does not wait for an approval", where=str(name))
    difference = state.differing[waiting[name]]
    if wanted is not None and wanted != difference.digest:
        raise InvalidInputError(
            f"the difference is now {difference.digest}",
            where="--difference",
            hint="read it before you approve it",
        )
    for line in rollout_text.difference_lines(
        waiting[name], difference, most=len(difference.others)
    ):
        render.emit(line)
    return commands.about(name, difference)


@command(
    "stop",
    exits={
        0: "the controller accepted it, or all nodes are released",
        1: "some nodes did not confirm their release: the output names them",
        2: "the rollout is over, or an option is invalid",
        69: "the bus is unreachable, or the controller did not answer",
    },
)
@id_argument
@operator_option
@click.pass_obj
def stop_command(node: NodeApp, rollout: str | None, operator: str | None) -> int:
    """Stop a rollout and release its nodes.

    ID is the rollout; the default is your newest. No further nodes start, active
    runs finish, and all nodes are released. The controller may be on another machine.

    If the controller was killed, the command releases the nodes itself, on the machine where the
    rollout began. If the rollout is over, the command releases nodes that are still on hold. The
    hold of an unreachable node expires by itself.

    Examples:
      localpuppet rollout stop
      localpuppet rollout stop 20261122T110000Z-0a1b
      localpuppet rollout stop 20261122T110000Z-0a1b --operator alice
    """
    here = _send(node, "stop", rollout, operator)
    if here is None:
        render.emit("stop requested: running nodes finish first")
        return 0
    state = here.state()
    over = state.over
    if over is not None and not (over.held_for_investigation or over.still_held):
        commands.check_not_over(commands.RolloutCommand.STOP, state)
    run(RolloutApp(node).release(state.began.id))
    report = here.report()
    here.close()
    render.emit(rollout_text.outcome(report))
    return 1 if report.held_until() else 0
