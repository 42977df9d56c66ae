"""Says a word to a rollout: in its journal where it goes on here, over the bus where elsewhere."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.rollout.execution.journal import Journal
    from localpuppet.rollout.execution.state import State
    from localpuppet.rollout.execution.words.word import Said, Word
    from localpuppet.rollout.wiring.rollout import RolloutWiring

of_option = click.option(
    "--of",
    "owner",
    metavar="NAME",
    help="Whose rollout it is, where it is not yours: policies must allow you `takeover`.",
)


def journal_here(
    wiring: "RolloutWiring",
    rollout: str | None,
    owner: str | None,
    *,
    wanted: "Callable[[State], bool]",
) -> "Journal | None":
    """Return the journal of a rollout of this machine; `None` where it is elsewhere.

    Args:
        wiring: Where.
        rollout: Its id; the newest that is wanted for `None`.
        owner: Whose; our own for `None`.
        wanted: Tells whether a rollout is one that could be meant without an id.

    Raises:
        InvalidInputError: The id or the name is refused.
        StateError: A journal cannot be read.
    """
    caller = wiring.caller if owner is None else SignerName.parse(owner).caller
    only = None if rollout is None else RolloutId.parse(rollout)
    for one in wiring.journals.ids():
        if only not in (None, one):
            continue
        journal = wiring.journals.open(one)
        state = journal.state()
        if state.began.caller == caller and (only is not None or wanted(state)):
            return journal
        journal.close()
    return None


def say_where_it_goes_on(
    node: NodeWiring,
    word: "Word",
    rollout: str | None,
    owner: str | None,
    *,
    about: "Callable[[State], str]" = lambda _: "",
) -> None:
    """Say a word to a rollout, wherever a process goes on with it; see `say`.

    Raises:
        InvalidInputError: No process goes on with it, or the word is refused.
        UnavailableError: Nobody elsewhere answered.
    """
    from localpuppet.base.errors import InvalidInputError
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.rollout.execution.words.word import Word
    from localpuppet.rollout.wiring.rollout import RolloutWiring

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
    say(wiring, word, rollout, owner, journal=journal, about=about)


def say(
    wiring: "RolloutWiring",
    word: "Word",
    rollout: str | None,
    owner: str | None,
    *,
    journal: "Journal | None",
    about: "Callable[[State], str]" = lambda _: "",
) -> RolloutId:
    """Say a word to a rollout, and return its id.

    Args:
        wiring: From where.
        word: The word.
        rollout: Its id; the newest for `None`.
        owner: Whose; our own for `None`.
        journal: Its journal, where a process of this machine goes on with it.
        about: Returns what the word is about, see `Said`, by where the rollout is.

    Raises:
        InvalidInputError: There is none, or the word is refused.
        UnavailableError: Nobody answered.
    """
    from localpuppet.fleet.wiring.fleet import machine_name
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.rollout.execution.words.word import Said

    if journal is None:
        wanted = None if rollout is None else RolloutId.parse(rollout)
        whose = None if owner is None else SignerName.parse(owner)
        return run(wiring.say(word, wanted, whose, about=about)).rollout
    state = journal.state()
    text = about(state)
    said = Said(word=word, caller=wiring.caller, machine=machine_name(), about=text)
    run(_say_here(journal, said))
    journal.close()
    return state.began.id


async def _say_here(journal: "Journal", said: "Said") -> None:
    """Say a word on this machine, and show that this waits until it is heard."""
    from localpuppet.fleet.cli.progress import shown
    from localpuppet.rollout.execution.words.saying_here import say_here

    async with shown(render.observer(quiet=False, title="waiting until this is heard")):
        await say_here(journal, said)
