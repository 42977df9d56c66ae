"""`localpuppet rollout pause`, `continue` and `rollback`: decide about a rollout."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, RolloutId, SignerName
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, option
from localpuppet.node.cli.confirming import confirm, confirmation_options

if TYPE_CHECKING:
    from localpuppet.rollout.commands import RolloutCommand, SentCommand
    from localpuppet.rollout.journal import JournalReader
    from localpuppet.rollout.state import RolloutState
    from localpuppet.rollout.wiring.rollout import FleetRollouts


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


def addressed(
    rollouts: "FleetRollouts", rollout: str | None, owner: str | None
) -> "tuple[RolloutId | None, JournalReader | None]":
    """Return the rollout that a command is for, and its journal if its newest state is here.

    Without an id it is the caller's newest rollout, even if that is over: a command never falls
    back to an older one.

    Args:
        rollouts: The rollouts of this signer.
        rollout: Its id.
        owner: Its caller; `None` for this signer.

    Returns:
        The id, `None` for the newest on the bus; and the journal, which the receiver closes.

    Raises:
        InvalidInputError: The id or the name is invalid.
        StateError: A journal cannot be read.
        UnavailableError: No process controls the rollout here, and the bus is unreachable.
    """
    from localpuppet.fleet.wiring.fleet import run

    wanted = None if rollout is None else RolloutId.parse(rollout)
    caller = rollouts.caller if owner is None else SignerName.parse(owner).caller
    for rollout_id in rollouts.journals.ids():
        if wanted not in (None, rollout_id):
            continue
        journal = rollouts.journals.open(rollout_id)
        taken, state = journal.taken, journal.state()
        if state.began.caller == caller:
            if taken or (wanted is not None and not state.resumable):
                return rollout_id, journal
            elsewhere = run(rollouts.elsewhere(state, newest=wanted is None))
            return (elsewhere, None) if elsewhere else (rollout_id, journal)
        journal.close()
    return wanted, None


def send_and_show_how_to_follow(
    node: NodeApp,
    command: "RolloutCommand",
    rollout: str | None,
    owner: str | None,
    *,
    about: "Callable[[RolloutState], str]" = lambda _: "",
) -> None:
    """Send a command to the controller of a rollout, on any machine; see `say`.

    Raises:
        InvalidInputError: No process controls it, or the command is rejected.
        UnavailableError: The controller did not reply.
    """
    from localpuppet.base.errors import InvalidInputError
    from localpuppet.rollout.commands import check_not_over
    from localpuppet.rollout.wiring.rollout import FleetRollouts

    rollouts = FleetRollouts(node)
    wanted, journal = addressed(rollouts, rollout, owner)
    if journal is not None and not journal.taken:
        check_not_over(command, journal.state())
        raise InvalidInputError(
            "no process controls it",
            where=str(wanted),
            hint=f"run 'localpuppet rollout resume {wanted}'",
        )
    say(rollouts, command, wanted, owner, journal=journal, about=about)


def say(
    rollouts: "FleetRollouts",
    command: "RolloutCommand",
    rollout: RolloutId | None,
    owner: str | None,
    *,
    journal: "JournalReader | None",
    about: "Callable[[RolloutState], str]" = lambda _: "",
) -> RolloutId:
    """Send a command to a rollout, and return the rollout's id.

    Args:
        rollouts: The rollouts of this signer.
        command: The command.
        rollout: Its id; the newest for `None`.
        owner: Its caller; `None` for this signer.
        journal: Its journal, if a process of this machine controls it.
        about: Returns what the command refers to, see `SentCommand`, from the state of the rollout.

    Raises:
        InvalidInputError: There is no such rollout, or the command is rejected.
        UnavailableError: The controller did not reply.
    """
    from localpuppet.fleet.wiring.fleet import machine_name, run
    from localpuppet.rollout.commands import SentCommand

    if journal is None:
        whose = None if owner is None else SignerName.parse(owner)
        return run(rollouts.say(command, rollout, whose, about=about)).rollout
    state = journal.state()
    text = about(state)
    sent = SentCommand(command=command, caller=rollouts.caller, machine=machine_name(), about=text)
    run(_send_here(journal, sent))
    journal.close()
    return state.began.id


async def _send_here(journal: "JournalReader", sent: "SentCommand") -> None:
    """Send a command on this machine, and show that it waits for the controller."""
    from localpuppet.fleet.cli.progress import shown
    from localpuppet.rollout.commands import send_here

    async with shown(render.observer(quiet=False, title="waiting for the controller")):
        await send_here(journal, sent)


@command("continue", exits=EXITS)
@_ID
@operator_option
@click.pass_obj
def continue_command(node: NodeApp, rollout: str | None, operator: str | None) -> None:
    """Continue a paused rollout.

    ID is the rollout; the default is your newest. If failures paused the rollout, the
    command accepts its failures so far. The alternatives are 'rollout stop' and 'rollout rollback'.

    Examples:
      localpuppet rollout continue
      localpuppet rollout continue 20261122T110000Z-0a1b
      localpuppet rollout continue 20261122T110000Z-0a1b --operator alice
    """
    from localpuppet.rollout.commands import RolloutCommand, identify_pause

    send_and_show_how_to_follow(
        node, RolloutCommand.CONTINUE, rollout, operator, about=identify_pause
    )
    render.emit("continued")


@command("pause", exits=EXITS)
@_ID
@operator_option
@click.pass_obj
def pause_command(node: NodeApp, rollout: str | None, operator: str | None) -> None:
    """Pause a running rollout.

    ID is the rollout; the default is your newest. No further nodes start, active runs
    finish and are checked, and all nodes stay on hold. 'rollout continue' continues the rollout and
    accepts no failures. If you do not decide within --pause-at-most of 'rollout run', the rollout
    stops.

    Examples:
      localpuppet rollout pause
      localpuppet rollout pause 20261122T110000Z-0a1b
      localpuppet rollout pause 20261122T110000Z-0a1b --operator alice
    """
    from localpuppet.rollout.commands import RolloutCommand

    send_and_show_how_to_follow(node, RolloutCommand.PAUSE, rollout, operator)
    render.emit("paused: running nodes finish, and 'localpuppet rollout continue' continues it")


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
    from localpuppet.rollout.commands import RolloutCommand

    if dry_run or not yes:
        rollout, step = _describe_rollback(node, rollout, operator)
        if dry_run:
            render.emit(f"would {step}")
            return
        confirm(step, yes=yes)
    send_and_show_how_to_follow(node, RolloutCommand.ROLLBACK, rollout, operator)
    render.emit("rollback requested: running nodes finish first")


def _describe_rollback(node: NodeApp, rollout: str | None, operator: str | None) -> tuple[str, str]:
    """Return the id of the rollout, and what a rollback does.

    Raises:
        InvalidInputError: There is no such rollout, or nothing to roll back.
        UnavailableError: The bus is unreachable.
    """
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.rollout.commands import (
        RolloutCommand,
        SentCommand,
        check_not_over,
        refusal,
    )
    from localpuppet.rollout.state import RolloutState
    from localpuppet.rollout.wiring.rollout import FleetRollouts

    rollouts = FleetRollouts(node)
    wanted, journal = addressed(rollouts, rollout, operator)
    if journal is not None:
        state = journal.state()
    else:
        whose = None if operator is None else SignerName.parse(operator)
        checkpoint = run(rollouts.commanded(RolloutCommand.ROLLBACK, wanted, whose))
        if not checkpoint.events:  # its journal is too large for the bus
            return str(checkpoint.rollout), f"roll back rollout {checkpoint.rollout}"
        state = RolloutState.of(event for _, event in checkpoint.events)
    check_not_over(RolloutCommand.ROLLBACK, state)
    sent = SentCommand(command=RolloutCommand.ROLLBACK, caller="", machine="")
    if reason := refusal(sent, state):
        raise InvalidInputError(reason, where=str(state.began.id))
    nodes = render.counted(len(state.took), "node")
    return str(state.began.id), f"roll back rollout {state.began.id} ({nodes} started so far)"


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
    from localpuppet.rollout.commands import RolloutCommand

    name = NodeName.parse(node_name)
    about = partial(_about, name, wanted)
    send_and_show_how_to_follow(node, RolloutCommand.APPROVE, rollout, operator, about=about)
    render.emit("approved: the node compares once more, and runs if nothing else differs")


def _about(name: NodeName, wanted: str | None, state: "RolloutState") -> str:
    """Show what a node would change, and return what the approval refers to."""
    from localpuppet.rollout.cli import changes_text
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
    for line in changes_text.difference(waiting[name], difference, most=len(difference.others)):
        render.emit(line)
    return about(name, difference)
