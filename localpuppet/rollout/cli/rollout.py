"""`localpuppet rollout`: its commands, and what operators decide about rollouts."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, RolloutId, SignerName
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import (
    CommandGroup,
    command,
    confirm,
    confirmation_options,
    option,
)

if TYPE_CHECKING:
    from localpuppet.rollout.journal import JournalReader
    from localpuppet.rollout.state import RolloutState

_DECISIONS, _REPORTS, _RUN = (
    f"rollout.cli.{module}" for module in ("rollout", "rollout_reports", "rollout_run")
)
MODULES = {
    "approve": _DECISIONS,
    "list": _REPORTS,
    "pause": _DECISIONS,
    "plan": _RUN,
    "report": _REPORTS,
    "resume": _RUN,
    "rollback": _DECISIONS,
    "run": _RUN,
    "status": _REPORTS,
    "stop": _DECISIONS,
}


@click.group(
    cls=CommandGroup,
    sections={"Commands": MODULES},
    renamed={"continue": "resume", "order": "plan"},
)
def rollout_command() -> None:
    """Run many nodes in order, and control such a rollout.

    The process of 'rollout run' controls the rollout. If it pauses or ends, 'rollout resume'
    continues the rollout, on this machine or on another.

    Examples:
      localpuppet rollout plan --release shop/tags/r7
      localpuppet rollout run --site site.yaml --canary 1 --window 5
      localpuppet rollout run --query role=web --order none --batch 25%
      localpuppet rollout status --watch
      localpuppet rollout resume 20261122T110000Z-0a1b
      localpuppet rollout stop
    """


operator_option = option(
    "--operator NAME",
    "The operator of the rollout, if not you; policies must allow you `takeover`.",
)
_ID = click.argument("rollout", required=False, metavar="[ID]")
EXITS = {
    0: "the controller accepted it",
    2: "there is no such rollout, or its controller rejected the command",
    69: "the controller did not answer",
}


def parse_names(
    rollout: str | None, operator: str | None
) -> tuple[RolloutId | None, SignerName | None]:
    """Return the rollout and the operator that a command names."""
    return (
        None if rollout is None else RolloutId.parse(rollout),
        None if operator is None else SignerName.parse(operator),
    )


def _nothing(_state: "RolloutState") -> str:
    return ""


def _send(
    node: NodeApp,
    word: str,
    rollout: str | None,
    operator: str | None,
    *,
    about: "Callable[[RolloutState], str]" = _nothing,
) -> "JournalReader | None":
    """Send a command to a rollout's controller on any machine; without one, return its journal."""
    from localpuppet.fleet.app import run
    from localpuppet.fleet.cli.requests import shown
    from localpuppet.rollout.app import RolloutApp
    from localpuppet.rollout.commands import RolloutCommand, send_here

    app, decision = RolloutApp(node), RolloutCommand(word)
    wanted, owner = parse_names(rollout, operator)

    async def send() -> "JournalReader | None":
        found, journal = await app.addressed(wanted, owner)
        if journal is None:
            await app.send(decision, found, owner, about=about)
        elif not journal.taken:
            return journal
        else:
            sent = app.sent(decision, about(journal.state()))
            async with shown(render.observer(quiet=False, title="waiting for the controller")):
                await send_here(journal, sent)
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
    about: "Callable[[RolloutState], str]" = _nothing,
) -> None:
    """Send a command, see `_send`, and print that it is done."""
    journal = _send(node, word, rollout, operator, about=about)
    if journal is not None:
        from localpuppet.rollout.commands import RolloutCommand, check_not_over

        state = journal.state()
        check_not_over(RolloutCommand(word), state)
        raise InvalidInputError(
            "no process controls it",
            where=str(state.began.id),
            hint=f"run 'localpuppet rollout resume {state.began.id}'",
        )
    render.emit(done)


@command("pause", exits=EXITS)
@_ID
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


@command("rollback", exits={**EXITS, 1: "you answered no"})
@_ID
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
    from localpuppet.fleet.app import run
    from localpuppet.rollout.app import RolloutApp
    from localpuppet.rollout.commands import RolloutCommand, SentCommand, check_not_over, refusal

    found, state = run(RolloutApp(node).rollback_of(*parse_names(rollout, operator)))
    if state is None:
        return str(found), f"roll back rollout {found}"
    check_not_over(RolloutCommand.ROLLBACK, state)
    sent = SentCommand(command=RolloutCommand.ROLLBACK, caller="", machine="")
    if reason := refusal(sent, state):
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


def _show_difference(name: NodeName, wanted: str | None, state: "RolloutState") -> str:
    """Show what a node would change, and return what the approval refers to."""
    from localpuppet.rollout.cli.rollout_text import difference_lines
    from localpuppet.rollout.commands import about

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
    for line in difference_lines(waiting[name], difference, most=len(difference.others)):
        render.emit(line)
    return about(name, difference)


@command(
    "stop",
    exits={
        0: "the controller accepted it, or all nodes are released",
        1: "some nodes did not confirm their release: the output names them",
        2: "the rollout is over, or an option is invalid",
        69: "the bus is unreachable, or the controller did not answer",
    },
)
@click.argument("rollout", required=False, metavar="[ID]")
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
    from localpuppet.fleet.app import run
    from localpuppet.rollout.app import RolloutApp
    from localpuppet.rollout.cli.rollout_text import outcome
    from localpuppet.rollout.commands import RolloutCommand, check_not_over

    here = _send(node, "stop", rollout, operator)
    if here is None:
        render.emit("stop requested: running nodes finish first")
        return 0
    state = here.state()
    over = state.over
    if over is not None and not (over.held_for_investigation or over.still_held):
        check_not_over(RolloutCommand.STOP, state)
    run(RolloutApp(node).release(state.began.id))
    report = here.report()
    here.close()
    render.emit(outcome(report))
    return 1 if report.held_until() else 0
