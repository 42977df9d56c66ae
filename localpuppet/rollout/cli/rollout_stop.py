"""`localpuppet rollout stop`: no more nodes start."""

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.rollout_words import journal_here, of_option, say


@click.command(
    "stop",
    epilog="""\b
Examples:
  localpuppet rollout stop
  localpuppet rollout stop 20261122T110000Z-0a1b
  localpuppet rollout stop 20261122T110000Z-0a1b --of alice

Exit codes: 0 whoever goes on with it has written it down, or all nodes are given back;
1 not all said that they are free: these are named; 2 it was over already, or refused;
69 the bus is away, or nobody answers.
""",
)
@click.argument("rollout", required=False, metavar="[ID]")
@of_option
@click.pass_obj
def stop_command(node: NodeWiring, rollout: str | None, owner: str | None) -> int:
    """Stop the rollout ID, or the newest to stop: no more nodes start, and all are given back.

    It may go on on this machine or on another. Where no process goes on with it any more (it was
    killed), its nodes are given back now, on the machine where it began; and so are those of the
    rollout ID that is over which it keeps on hold because they failed, or that did not hear then
    that they are free. Who does not hear it is free by itself when its hold ends.
    """
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.rollout.cli.rollout_text import outcome
    from localpuppet.rollout.execution.report import Report
    from localpuppet.rollout.execution.words.word import Word
    from localpuppet.rollout.wiring.rollout import RolloutWiring

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
    if over is not None and not (over.kept or over.left):
        raise InvalidInputError(f"is over: {over.ending}", where=str(here.state().began.id))
    end = wiring.give_up if over is None else wiring.give_back
    run(end(here, lambda _: None))
    report = Report.of(here.events(), taken=False)
    here.close()
    render.emit(outcome(report))
    return 1 if report.held_until() else 0
