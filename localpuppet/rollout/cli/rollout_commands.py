"""Send a rollout command: through the journal on this machine, over the bus to others."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.node.cli import render
from localpuppet.node.cli.command import option
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.rollout.execution.commands.command import RolloutCommand, SentCommand
    from localpuppet.rollout.execution.journal import JournalReader
    from localpuppet.rollout.execution.state import RolloutState
    from localpuppet.rollout.wiring.checkpoints import FleetRollouts

operator_option = option(
    "--operator NAME",
    "The operator of the rollout, if not you; policies must allow you `takeover`.",
)


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
    from localpuppet.fleet.wiring.run_async import run

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
    node: NodeWiring,
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
    from localpuppet.rollout.execution.commands.command import check_not_over
    from localpuppet.rollout.wiring.checkpoints import FleetRollouts

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
    from localpuppet.fleet.wiring.fleet import machine_name
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.rollout.execution.commands.command import SentCommand

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
    from localpuppet.rollout.execution.commands.local_sending import send_here

    async with shown(render.observer(quiet=False, title="waiting for the controller")):
        await send_here(journal, sent)
