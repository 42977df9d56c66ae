"""What a person may have nodes and rollouts do from the page, and what will come of it.

Owns: the actions, their words, and what of a form is taken. Refuses to know: HTTP, signatures, the
bus.

Invariant: the page decides nothing. What is asked of a node is decided by the node's own policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import NodeName
from localpuppet.formats.text import parse_line
from localpuppet.formats.times import parse_duration
from localpuppet.orchestrator.rollout.report import PAUSED, RUNNING
from localpuppet.orchestrator.rollout.words.word import Word
from localpuppet.web.row import SILENT, Row


class Action(StrEnum):
    """What a node can be asked for, as it stands in a URL."""

    TRIGGER = "trigger"
    NOOP = "noop"
    HOLD = "hold"
    ENABLE = "enable"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Return the action.

        Raises:
            InvalidInputError: The text is not one.
        """
        try:
            return cls(text)
        except ValueError as error:
            raise InvalidInputError(f"is not one of {', '.join(cls)}", where="action") from error

    @property
    def label(self) -> str:
        """Return what a button says."""
        return _TITLES[self]


_TITLES = {
    Action.TRIGGER: "Trigger a run",
    Action.NOOP: "Noop run",
    Action.HOLD: "Put on hold",
    Action.ENABLE: "End my hold",
}
_WILL = {
    Action.TRIGGER: (
        "It is sent a trigger in your name: a run that starts after it follows, and changes what"
        " its release asks for."
    ),
    Action.NOOP: "It is asked for a run with --noop: Puppet says what it would change.",
    Action.HOLD: (
        "No run starts there until the hold ends: not by its timer, not by triggers, not by a"
        " Puppet agent. A run that is on goes on."
    ),
    Action.ENABLE: "The hold that it has in your name ends; those of others stay.",
}
# The action in the node's policy.
NEEDS = {
    Action.TRIGGER: "trigger",
    Action.NOOP: "runonce",
    Action.HOLD: "disable",
    Action.ENABLE: "enable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something that a person has a node do.

    Attributes:
        action: What.
        node: Who.
        message: Of a hold: why.
        length: Of a hold: after which time it ends by itself, `2h`; empty for never.
    """

    action: Action
    node: NodeName
    message: str = ""
    length: str = ""

    @classmethod
    def read(cls, action: Action, node: NodeName, form: Mapping[str, str]) -> "Deed":
        """Return what a form asks for.

        Args:
            action: What.
            node: Who.
            form: Fields and what is in them.

        Raises:
            InvalidInputError: A field is refused.
        """
        if action is not Action.HOLD:
            return cls(action=action, node=node)
        line = partial(parse_line, what="reason")
        length = form.get("length", "").strip()
        if length:
            parse_duration(length, what="length of a hold")
        return cls(
            action=action, node=node, message=line(form.get("message", "").strip()), length=length
        )

    def __str__(self) -> str:
        """Return what is asked for, for the log."""
        if self.action is not Action.HOLD:
            return str(self.action)
        return f"hold ({f'for {self.length}' if self.length else 'without end'}: {self.message})"


def consequences(action: Action, row: Row) -> tuple[str, ...]:
    """Return what will happen, sentence by sentence.

    Args:
        action: What is asked for.
        row: How the node is.
    """
    found = [_WILL[action]]
    runs = action in (Action.TRIGGER, Action.NOOP)
    if row.state == SILENT:
        found.append("It is silent: it may not hear of this.")
    if runs and row.holds:
        found.append("It is on hold: nothing runs before the hold ends.")
    elif runs and row.cause:
        found.append("A run is on there; this one follows it.")
    if action is Action.ENABLE and not row.holds:
        found.append("It says that nothing holds it.")
    found.append(f"Its policy decides whether you may: {NEEDS[action]}.")
    return tuple(found)


# What can be said to a rollout, and what a button says then.
WORDS = {Word.CONTINUE: "Continue the rollout", Word.STOP: "Stop the rollout"}
_WORD_WILL = {
    Word.CONTINUE: "It goes on with its next nodes: what failed so far is accepted.",
    Word.STOP: (
        "No further node starts. Runs that are on end first; then the nodes are given back as they"
        " were."
    ),
}


def parse_word(text: str) -> Word:
    """Return what can be said to a rollout.

    Raises:
        InvalidInputError: The text is not a word of that kind.
    """
    if text not in WORDS:
        raise InvalidInputError(f"is not one of {', '.join(WORDS)}", where="action")
    return Word(text)


def rollout_consequences(word: Word, state: str) -> tuple[str, ...]:
    """Return what will happen to a rollout, sentence by sentence.

    Args:
        word: What is said.
        state: Where it is, a word of its report.
    """
    found = [_WORD_WILL[word]]
    if state not in (RUNNING, PAUSED):
        found.append(f"It is {state}: no process goes on with it that could hear this.")
    elif word is Word.CONTINUE and state != PAUSED:
        found.append("It does not wait for a word.")
    return tuple(found)
