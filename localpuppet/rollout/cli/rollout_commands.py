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


def journal_here(
    rollouts: "FleetRollouts",
    rollout: str | None,
    owner: str | None,
    *,
    wanted: "Callable[[RolloutState], bool]",
) -> "JournalReader | None":
    """Return the journal of a rollout of this machine; `None` if it has none.

    Args:
        rollouts: The rollouts of this signer.
        rollout: Its id; the newest that matches `wanted` for `None`.
        owner: Its caller; `None` for this signer.
        wanted: Returns whether a rollout can be meant without an id.

    Raises:
        InvalidInputError: The id or the name is invalid.
        StateError: A journal cannot be read.
    """
    caller = rollouts.caller if owner is None else SignerName.parse(owner).caller
    only = None if rollout is None else RolloutId.parse(rollout)
    for rollout_id in rollouts.journals.ids():
        if only not in (None, rollout_id):
            continue
        journal = rollouts.journals.open(rollout_id)
        state = journal.state()
        if state.began.caller == caller and (only is not None or wanted(state)):
            return journal
        journal.close()
    return None


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
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.rollout.execution.commands.command import RolloutCommand
    from localpuppet.rollout.wiring.checkpoints import FleetRollouts

    rollouts = FleetRollouts(node)
    waits = command is RolloutCommand.CONTINUE
    journal = journal_here(
        rollouts,
        rollout,
        owner,
        wanted=lambda state: state.waits if waits else state.over is None,
    )
    if journal is not None and not journal.taken:
        state = journal.state()
        if state.over is not None:
            raise InvalidInputError(f"is over: {state.over.ending}", where=str(state.began.id))
        if not run(rollouts.elsewhere(journal)):
            raise InvalidInputError(
                "no process controls it",
                where=str(state.began.id),
                hint=f"run 'localpuppet rollout resume {state.began.id}'",
            )
        journal.close()
        rollout, journal = str(state.began.id), None
    say(rollouts, command, rollout, owner, journal=journal, about=about)


def say(
    rollouts: "FleetRollouts",
    command: "RolloutCommand",
    rollout: str | None,
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
        wanted = None if rollout is None else RolloutId.parse(rollout)
        whose = None if owner is None else SignerName.parse(owner)
        return run(rollouts.say(command, wanted, whose, about=about)).rollout
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
