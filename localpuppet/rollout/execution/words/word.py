"""What people can say of a rollout that goes on, and whether it is too late for that.

Owns: the words, and the event that each of them comes to. Refuses to know: how a word gets here,
and who may say one.

A word more is a member of `Word`, its reason in `refusal`, and its event in `meaning`.
"""

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.rollout.execution.changes.comparing import DIGITS, Difference
from localpuppet.rollout.execution.event_forms import to_dict
from localpuppet.rollout.execution.events import (
    Approved,
    Continued,
    Ending,
    Event,
    Stopped,
    Turn,
)
from localpuppet.rollout.execution.state import State


class Word(StrEnum):
    """One of the things that can be said."""

    STOP = "stop"
    CONTINUE = "continue"
    ROLLBACK = "rollback"
    APPROVE = "approve"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A word that somebody said.

    Attributes:
        word: The word.
        caller: Who, a caller id.
        machine: Where, as that machine calls itself, one line.
        about: Of `APPROVE`: the node and the digest of the difference that is approved, with a
            space between the two; of `CONTINUE`: the pause that it ends; empty for other words.
    """

    word: Word
    caller: str
    machine: str
    about: str = ""

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
    if said.word is Word.APPROVE:
        return "" if _approved(said, state) else _not_differing(said, state)
    if said.word is Word.CONTINUE and state.paused is None:
        return "does not wait for a word"
    if said.word is Word.CONTINUE and state.differing and state.paused and state.paused.changes:
        nodes = shown_names(sorted(turn.node for turn in state.differing))
        return f"waits until what {nodes} would change is approved"
    if said.word is Word.CONTINUE and said.about != identify_pause(state):
        return "paused again since then: look at what it waits for now"
    if said.word is Word.ROLLBACK and state.began.options.delivery is None:
        return "gave no node a release: there is nothing to take back"
    return ""


def _approved(said: Said, state: State) -> Turn | None:
    """Return the turn whose difference is approved; `None` where there is no such difference."""
    for turn, difference in state.differing.items():
        if said.about == about(turn.node, difference):
            return turn
    return None


def _not_differing(said: Said, state: State) -> str:
    node = said.about.partition(" ")[0]
    if not node:
        return "what is approved is not said: approve it where the rollout goes on"
    if any(turn.node == node for turn in state.differing):
        return f"what {node} would change is another difference by now: look at it"
    return f"{node} does not wait for an approval"


def about(node: NodeName, difference: Difference) -> str:
    """Return what an approval is about."""
    return f"{node} {difference.digest}"


def identify_pause(state: State) -> str:
    """Return the number and the digest of the pause of a rollout; empty if it is not paused."""
    if state.paused is None:
        return ""
    text = json.dumps(to_dict(state.paused), sort_keys=True)
    return f"{state.pauses} {hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def meaning(said: Said, state: State) -> Event:
    """Return what happens in a rollout by a word that is not refused."""
    if (turn := _approved(said, state)) is not None:
        return Approved(turn=turn, difference=state.differing[turn].digest, who=said.who)
    if said.word is Word.CONTINUE:
        return Continued(caller=said.caller, machine=said.machine)
    if said.word is Word.ROLLBACK:
        return Stopped(ending=Ending.TAKEN_BACK, why=f"taken back by {said.who}")
    return Stopped(ending=Ending.STOPPED, why=f"stopped by {said.who}")
