"""`localpuppet rollout approve`: approve changes of a node beyond the approved ones."""

from functools import partial
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, option
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.rollout_continue import operator_option, send_and_show_how_to_follow

if TYPE_CHECKING:
    from localpuppet.rollout.execution.state import RolloutState


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
    node: NodeWiring, rollout: str, node_name: str, wanted: str | None, operator: str | None
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
    from localpuppet.rollout.execution.commands.command import RolloutCommand

    name = NodeName.parse(node_name)
    about = partial(_about, name, wanted)
    send_and_show_how_to_follow(node, RolloutCommand.APPROVE, rollout, operator, about=about)
    render.emit("approved: the node compares once more, and runs if nothing else differs")


def _about(name: NodeName, wanted: str | None, state: "RolloutState") -> str:
    """Show what a node would change, and return what the approval refers to."""
    from localpuppet.rollout.cli import changes_text
    from localpuppet.rollout.execution.commands.command import about

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
