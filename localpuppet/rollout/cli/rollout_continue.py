"""`localpuppet rollout pause`, `continue` and `rollback`: decide about a rollout."""

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import SignerName
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command
from localpuppet.node.cli.confirming import confirm, confirmation_options
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.rollout_commands import (
    addressed,
    operator_option,
    send_and_show_how_to_follow,
)

_ID = click.argument("rollout", required=False, metavar="[ID]")
EXITS = {
    0: "the controller accepted it",
    2: "there is no such rollout, or its controller rejected the command",
    69: "the controller did not answer",
}


@command("continue", exits=EXITS)
@_ID
@operator_option
@click.pass_obj
def continue_command(node: NodeWiring, rollout: str | None, operator: str | None) -> None:
    """Continue a paused rollout.

    ID is the rollout; the default is your newest. If failures paused the rollout, the
    command accepts its failures so far. The alternatives are 'rollout stop' and 'rollout rollback'.

    Examples:
      localpuppet rollout continue
      localpuppet rollout continue 20261122T110000Z-0a1b
      localpuppet rollout continue 20261122T110000Z-0a1b --operator alice
    """
    from localpuppet.rollout.execution.commands.command import RolloutCommand, identify_pause

    send_and_show_how_to_follow(
        node, RolloutCommand.CONTINUE, rollout, operator, about=identify_pause
    )
    render.emit("continued")


@command("pause", exits=EXITS)
@_ID
@operator_option
@click.pass_obj
def pause_command(node: NodeWiring, rollout: str | None, operator: str | None) -> None:
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
    from localpuppet.rollout.execution.commands.command import RolloutCommand

    send_and_show_how_to_follow(node, RolloutCommand.PAUSE, rollout, operator)
    render.emit("paused: running nodes finish, and 'localpuppet rollout continue' continues it")


@command("rollback", exits={**EXITS, 1: "you answered no"})
@_ID
@operator_option
@confirmation_options
@click.pass_obj
def rollback_command(
    node: NodeWiring, rollout: str | None, operator: str | None, dry_run: bool, yes: bool
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
    from localpuppet.rollout.execution.commands.command import RolloutCommand

    if dry_run or not yes:
        rollout, step = _describe_rollback(node, rollout, operator)
        if dry_run:
            render.emit(f"would {step}")
            return
        confirm(step, yes=yes)
    send_and_show_how_to_follow(node, RolloutCommand.ROLLBACK, rollout, operator)
    render.emit("rollback requested: running nodes finish first")


def _describe_rollback(
    node: NodeWiring, rollout: str | None, operator: str | None
) -> tuple[str, str]:
    """Return the id of the rollout, and what a rollback does.

    Raises:
        InvalidInputError: There is no such rollout, or nothing to roll back.
        UnavailableError: The bus is unreachable.
    """
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.rollout.execution.commands.command import (
        RolloutCommand,
        SentCommand,
        check_not_over,
        refusal,
    )
    from localpuppet.rollout.execution.state import RolloutState
    from localpuppet.rollout.wiring.checkpoints import FleetRollouts

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
