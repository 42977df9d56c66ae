"""`localpuppet rollout stop`: no more nodes start."""

import click

from localpuppet.cli import render
from localpuppet.formats.names import RolloutId
from localpuppet.wiring.node import NodeWiring


@click.command(
    "stop",
    epilog="""\b
Examples:
  localpuppet rollout stop
  localpuppet rollout stop 20261122T110000Z-0a1b

Exit codes: 0 it is being stopped, or is over; 2 it was over already; 69 the bus is away.
""",
)
@click.argument("rollout", required=False, metavar="[ID]")
@click.pass_obj
def stop_command(node: NodeWiring, rollout: str | None) -> int:
    """Stop the rollout ID, or the newest to stop: no more nodes start, and all are given back.

    Where no process goes on with it any more (it was killed), its nodes are given back now; and so
    are those of a rollout that is over which it keeps on hold because they failed.
    """
    from localpuppet.cli.orchestrator.rollout_text import outcome
    from localpuppet.orchestrator.rollout.report import Report
    from localpuppet.orchestrator.rollout.words import Word
    from localpuppet.wiring.rollout import RolloutWiring
    from localpuppet.wiring.run_async import run

    wiring = RolloutWiring(node)
    if rollout is None:
        journal = wiring.journals.newest(
            lambda state: state.over is None or bool(state.over.kept), what="goes on or keeps nodes"
        )
    else:
        journal = wiring.journals.open(RolloutId.parse(rollout))
    if journal.taken:
        journal.say(Word.STOP, wiring.caller)
        journal.close()
        render.emit("asked to stop: runs that are on end first")
        return 0
    over = journal.state().over
    end = wiring.give_back if over is not None and over.kept else wiring.give_up
    run(end(journal, lambda _: None))
    render.emit(outcome(Report.of(journal.events(), taken=False)))
    journal.close()
    return 0
