"""`localpuppet rollout continue`: a rollout that waits for somebody's word goes on."""

import click

from localpuppet.cli import render
from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import RolloutId
from localpuppet.wiring.node import NodeWiring


@click.command(
    "continue",
    short_help="Let a rollout go on that waits for somebody's word.",
    epilog="""\b
Examples:
  localpuppet rollout continue
  localpuppet rollout continue 20261122T110000Z-0a1b

Exit codes: 0 it goes on, 2 it does not wait.
""",
)
@click.argument("rollout", required=False, metavar="[ID]")
@click.pass_obj
def continue_command(node: NodeWiring, rollout: str | None) -> None:
    """Let the rollout ID, or the newest that waits for it, go on: what failed so far is accepted.

    'localpuppet rollout stop' is the other word that can be said.
    """
    from localpuppet.orchestrator.rollout.words import Word
    from localpuppet.wiring.rollout import RolloutWiring

    wiring = RolloutWiring(node)
    if rollout is None:
        journal = wiring.journals.newest(lambda state: state.waits, what="waits for a word")
    else:
        journal = wiring.journals.open(RolloutId.parse(rollout))
    state = journal.state()
    if not state.waits:
        raise InvalidInputError("does not wait for a word", where=str(state.began.id))
    if not journal.taken:
        raise InvalidInputError(
            "waits, but no process goes on with it",
            where=str(state.began.id),
            hint=f"localpuppet rollout resume {state.began.id}",
        )
    journal.say(Word.CONTINUE, wiring.caller)
    journal.close()
    render.emit("goes on")
