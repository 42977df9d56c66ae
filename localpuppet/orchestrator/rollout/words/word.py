"""What people can say of a rollout that goes on, and whether it is too late for that.

Owns: the words, and the event that each of them comes to. Refuses to know: how a word gets here,
and who may say one.

A word more is a member of `Word`, its reason in `refusal`, and its event in `meaning`.
"""

from dataclasses import dataclass
from enum import StrEnum

from localpuppet.orchestrator.rollout.events import Continued, Ending, Event, Stopped
from localpuppet.orchestrator.rollout.state import State


class Word(StrEnum):
    """One of the things that can be said."""

    STOP = "stop"
    CONTINUE = "continue"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A word that somebody said.

    Attributes:
        word: The word.
        caller: Who, a caller id.
        machine: Where, as that machine calls itself, one line.
    """

    word: Word
    caller: str
    machine: str

    @property
    def who(self) -> str:
        """Who said so, and where."""
        return f"{self.caller} on {self.machine}"


def refusal(said: Said, state: State) -> str:
    """Return why a word has no meaning where a rollout is, one line; empty where it has."""
    if state.over is not None:
        return f"is over: {state.over.ending}"
    if state.stopped is not None:
        return f"was to end before that: {state.stopped.why}"
    if said.word is Word.CONTINUE and state.paused is None:
        return "does not wait for a word"
    if said.word is Word.ROLLBACK and state.began.options.delivery is None:
        return "gave no node a release: there is nothing to take back"
    return ""


def meaning(said: Said) -> Event:
    """Return what happens in a rollout by a word that is not refused."""
    if said.word is Word.CONTINUE:
        return Continued(caller=said.caller, machine=said.machine)
    if said.word is Word.ROLLBACK:
        return Stopped(ending=Ending.TAKEN_BACK, why=f"taken back by {said.who}")
    return Stopped(ending=Ending.STOPPED, why=f"stopped by {said.who}")
