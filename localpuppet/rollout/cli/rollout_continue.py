"""`localpuppet rollout continue` and `rollback`: what is to become of a rollout that waits."""

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.rollout_words import of_option, say_where_it_goes_on

_ID = click.argument("rollout", required=False, metavar="[ID]")
_EXITS = """
Exit codes: 0 whoever goes on with it has written it down, 2 it is refused, 69 nobody answers.
"""


@click.command(
    "continue",
    short_help="Let a rollout go on that waits for somebody's word.",
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
    """Let the rollout ID, or the newest that waits for it, go on: what failed so far is accepted.

    It may go on on this machine or on another. 'localpuppet rollout stop' and 'rollback' are the
    other words that can be said.
    """
    from localpuppet.rollout.execution.words.word import Word, identify_pause

    say_where_it_goes_on(node, Word.CONTINUE, rollout, owner, about=identify_pause)
    render.emit("goes on")


@click.command(
    "rollback",
    short_help="Have a rollout take its release back.",
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
    """Have the nodes that took the release of the rollout ID, or the newest, go back.

    It must have been begun with --release, and go on: no more nodes start, those that run end, and
    then the nodes go back to what they ran before.
    """
    from localpuppet.rollout.execution.words.word import Word

    say_where_it_goes_on(node, Word.ROLLBACK, rollout, owner)
    render.emit("asked to go back: runs that are on end first")
