"""`localpuppet rollout continue` and `rollback`: what is to become of a rollout that waits."""

from typing import TYPE_CHECKING

import click

from localpuppet.cli import render
from localpuppet.cli.orchestrator.rollout_words import journal_here, of_option, say
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.orchestrator.rollout.words.word import Word

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
    from localpuppet.orchestrator.rollout.words.word import Word

    _say(node, Word.CONTINUE, rollout, owner, done="goes on")


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
    from localpuppet.orchestrator.rollout.words.word import Word

    _say(node, Word.ROLLBACK, rollout, owner, done="asked to go back: runs that are on end first")


def _say(
    node: NodeWiring, word: "Word", rollout: str | None, owner: str | None, *, done: str
) -> None:
    from localpuppet.errors import InvalidInputError
    from localpuppet.orchestrator.rollout.words.word import Word
    from localpuppet.wiring.rollout import RolloutWiring
    from localpuppet.wiring.run_async import run

    wiring = RolloutWiring(node)
    waits = word is Word.CONTINUE
    journal = journal_here(
        wiring,
        rollout,
        owner,
        wanted=lambda state: state.waits if waits else state.over is None,
    )
    if journal is not None and not journal.taken:
        state = journal.state()
        if state.over is not None:
            raise InvalidInputError(f"is over: {state.over.ending}", where=str(state.began.id))
        if not run(wiring.elsewhere(journal)):
            raise InvalidInputError(
                "no process goes on with it",
                where=str(state.began.id),
                hint=f"localpuppet rollout resume {state.began.id}",
            )
        journal.close()
        rollout, journal = str(state.began.id), None
    say(wiring, word, rollout, owner, journal=journal)
    render.emit(done)
