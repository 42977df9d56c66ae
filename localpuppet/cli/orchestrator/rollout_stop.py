"""`localpuppet rollout stop`: no more nodes start."""

import click

from localpuppet.cli import render
from localpuppet.cli.orchestrator.rollout_words import journal_here, of_option, say
from localpuppet.wiring.node import NodeWiring


@click.command(
    "stop",
    epilog="""\b
Examples:
  localpuppet rollout stop
  localpuppet rollout stop 20261122T110000Z-0a1b
  localpuppet rollout stop 20261122T110000Z-0a1b --of alice

Exit codes: 0 it is being stopped, or is over; 2 it was over already, or refused; 69 the bus
is away, or nobody answers.
""",
)
@click.argument("rollout", required=False, metavar="[ID]")
@of_option
@click.pass_obj
def stop_command(node: NodeWiring, rollout: str | None, owner: str | None) -> int:
    """Stop the rollout ID, or the newest to stop: no more nodes start, and all are given back.

    It may go on on this machine or on another. Where no process goes on with it any more (it was
    killed), its nodes are given back now, on the machine where it began; and so are those of a
    rollout that is over which it keeps on hold because they failed.
    """
    from localpuppet.cli.orchestrator.rollout_text import outcome
    from localpuppet.orchestrator.rollout.report import Report
    from localpuppet.orchestrator.rollout.words.word import Word
    from localpuppet.wiring.rollout import RolloutWiring
    from localpuppet.wiring.run_async import run

    wiring = RolloutWiring(node)
    journal = journal_here(
        wiring,
        rollout,
        owner,
        wanted=lambda state: state.over is None or bool(state.over.kept),
    )
    here = journal
    if journal is not None and not journal.taken and run(wiring.elsewhere(journal)):
        rollout, here = str(journal.state().began.id), None
    if journal is None or here is None or here.taken:
        say(wiring, Word.STOP, rollout, owner, journal=here)
        render.emit("asked to stop: runs that are on end first")
        return 0
    over = here.state().over
    end = wiring.give_back if over is not None and over.kept else wiring.give_up
    run(end(here, lambda _: None))
    render.emit(outcome(Report.of(here.events(), taken=False)))
    here.close()
    return 0
