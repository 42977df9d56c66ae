"""`localpuppet rollout approve`: what a node would change beyond what was approved may be."""

import click

from localpuppet.cli import render
from localpuppet.cli.orchestrator.rollout_words import journal_here, say
from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import NodeName
from localpuppet.wiring.node import NodeWiring


@click.command(
    "approve",
    short_help="Approve what a node would change beyond what was approved.",
    epilog="""\b
Examples:
  localpuppet rollout approve 20261122T110000Z-0a1b web01.example.com
  localpuppet rollout approve --difference 1d899382700659a1 \\
      20261122T110000Z-0a1b web01.example.com

Exit codes: 0 it is approved, and the node runs; 2 the node does not wait for that.
""",
)
@click.argument("rollout", metavar="ID")
@click.argument("node_name", metavar="NODE")
@click.option(
    "--difference",
    "wanted",
    metavar="DIGEST",
    help="Only this difference, as 'status' and 'report' name it; not another one by now.",
)
@click.pass_obj
def approve_command(node: NodeWiring, rollout: str, node_name: str, wanted: str | None) -> None:
    """Let NODE run in the rollout ID, which waits because it would change what was not approved.

    The rollout must go on on this machine: what is approved is read from its journal, shown, and
    written down there with your name.
    """
    from localpuppet.cli.orchestrator import changes_text
    from localpuppet.orchestrator.rollout.words.word import Word, about
    from localpuppet.wiring.rollout import RolloutWiring

    name = NodeName.parse(node_name)
    wiring = RolloutWiring(node)
    journal = journal_here(wiring, rollout, None, wanted=lambda _: True)
    if journal is None or not journal.taken:
        raise InvalidInputError(
            "no process of this machine goes on with it",
            where=rollout,
            hint="approve where it goes on, or 'localpuppet rollout resume' it",
        )
    waiting = {turn.node: turn for turn in journal.state().differing}
    if name not in waiting:
        raise InvalidInputError("does not wait for an approval", where=str(name))
    found = journal.state().differing[waiting[name]]
    if wanted is not None and wanted != found.digest:
        raise InvalidInputError(
            f"the difference is {found.digest} by now", where="--difference", hint="look at it"
        )
    for line in changes_text.difference(waiting[name], found, most=len(found.others)):
        render.emit(line)
    say(wiring, Word.APPROVE, rollout, None, journal=journal, about=about(name, found))
    render.emit("approved: it runs now")
