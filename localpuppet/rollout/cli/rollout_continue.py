"""`localpuppet rollout continue` and `rollback`: decide about a paused or running rollout."""

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.rollout_commands import of_option, say_where_it_goes_on

_ID = click.argument("rollout", required=False, metavar="[ID]")
_EXITS = """
Exit codes: 0 the controller recorded it, 2 it is rejected, 69 the controller did not reply.
"""


@click.command(
    "continue",
    short_help="Continue a paused rollout.",
    epilog=f"""\b
Examples:
  localpuppet rollout continue
  localpuppet rollout continue 20261122T110000Z-0a1b
  localpuppet rollout continue 20261122T110000Z-0a1b --of alice
{_EXITS}""",
)
@_ID
@of_option
@click.pass_obj
def continue_command(node: NodeWiring, rollout: str | None, owner: str | None) -> None:
    """Continue the rollout ID, or the newest that is paused, and accept its failures so far.

    Its controller may run on this machine or on another. The alternatives are 'localpuppet rollout
    stop' and 'localpuppet rollout rollback'.
    """
    from localpuppet.rollout.execution.commands.command import RolloutCommand, identify_pause

    say_where_it_goes_on(node, RolloutCommand.CONTINUE, rollout, owner, about=identify_pause)
    render.emit("continued")


@click.command(
    "rollback",
    short_help="Roll the nodes of a rollout back.",
    epilog=f"""\b
Examples:
  localpuppet rollout rollback
  localpuppet rollout rollback 20261122T110000Z-0a1b --of alice
{_EXITS}""",
)
@_ID
@of_option
@click.pass_obj
def rollback_command(node: NodeWiring, rollout: str | None, owner: str | None) -> None:
    """Roll back the nodes that took the release of the rollout ID, or of the newest.

    The rollout must have been started with --release, and be running. No further nodes start,
    running ones finish, and then the nodes go back to their previous release.
    """
    from localpuppet.rollout.execution.commands.command import RolloutCommand

    say_where_it_goes_on(node, RolloutCommand.ROLLBACK, rollout, owner)
    render.emit("rollback requested: running nodes finish first")
