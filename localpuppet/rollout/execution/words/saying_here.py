"""Says a word to the process of this machine that goes on with a rollout: through its journal.

    the word is in the journal -> the process hears it -> what it comes to is an event there

Owns: when a word counts as heard. Refuses to know: what it does, and who may say it: whoever can
write the journal.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.rollout.execution.events import Event
from localpuppet.rollout.execution.state import State
from localpuppet.rollout.execution.words.word import Said, Word, meaning, refusal

# Seconds until a word counts as not heard: longer than nodes are asked whether they are ready, and
# held, since nobody hears meanwhile.
PATIENCE = 60.0
PACE = 0.25  # seconds between two looks


class Journal(Protocol):
    """What is asked of a rollout's journal; see `journal.Journal`."""

    @property
    def taken(self) -> bool:
        """Whether some process goes on with the rollout."""
        ...

    def events(self) -> Sequence[tuple[str, Event]]:
        """Return what happened, the oldest first, each with its time."""
        ...

    def say(self, word: Word, caller: str, about: str = "") -> None:
        """Say something to the process that goes on with the rollout."""
        ...


async def say_here(journal: Journal, said: Said, *, patience: float = PATIENCE) -> None:
    """Say a word; what it comes to is in the journal when this returns.

    Args:
        journal: The journal, where a process of this machine goes on with it.
        said: The word, and who says it on this machine.
        patience: Seconds to wait for that.

    Raises:
        InvalidInputError: It is refused, or somebody else has decided meanwhile.
        UnavailableError: It was not heard: the process ended, or has not come to it yet.
        StateError: The journal cannot be read or written.
    """
    before = [event for _, event in journal.events()]
    state = State.of(before)
    where = str(state.began.id)
    if problem := refusal(said, state):
        raise InvalidInputError(problem, where=where)
    expected = meaning(said, state)
    journal.say(said.word, said.caller, said.about)
    try:
        async with asyncio.timeout(patience):
            while True:
                await asyncio.sleep(PACE)
                taken = journal.taken  # before the look: what it wrote before it ended counts
                events = [event for _, event in journal.events()]
                if expected in events[len(before) :]:
                    return
                if problem := refusal(said, State.of(events)):
                    raise InvalidInputError(problem, where=where)
                if not taken:
                    raise UnavailableError(
                        "whoever went on with it ended before this was heard",
                        where=where,
                        hint=f"localpuppet rollout resume {where}",
                    )
    except TimeoutError:
        raise UnavailableError(
            f"whoever goes on with it did not hear this within {patience:g} s, and may yet",
            where=where,
            hint=f"localpuppet rollout status {where}",
        ) from None
