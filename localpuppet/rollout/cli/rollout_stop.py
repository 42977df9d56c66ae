"""`localpuppet rollout stop`: stop a rollout and release its nodes."""

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command
from localpuppet.rollout.cli.rollout_continue import addressed, operator_option, say


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
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.rollout.cli.rollout_text import outcome
    from localpuppet.rollout.commands import RolloutCommand, check_not_over
    from localpuppet.rollout.wiring.rollout import FleetRollouts, RolloutController

    rollouts = FleetRollouts(node)
    wanted, here = addressed(rollouts, rollout, operator)
    if here is None or here.taken:
        say(rollouts, RolloutCommand.STOP, wanted, operator, journal=here)
        render.emit("stop requested: running nodes finish first")
        return 0
    state = here.state()
    over = state.over
    if over is not None and not (over.held_for_investigation or over.still_held):
        check_not_over(RolloutCommand.STOP, state)
    controller = RolloutController(node, rollouts)
    end = controller.give_up if over is None else controller.give_back
    run(end(state.began.id))
    report = here.report()
    here.close()
    render.emit(outcome(report))
    return 1 if report.held_until() else 0
