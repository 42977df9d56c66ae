"""What a person may have nodes and rollouts do from the page, and what will come of it.

Owns: the actions, their words, and what of a form is taken. Refuses to know: HTTP, signatures, the
bus.

Invariant: the page decides nothing. What is asked of a node is decided by the node's own policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Self

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import parse_line, shown_names
from localpuppet.base.formats.times import parse_duration
from localpuppet.rollout.execution.report import ELSEWHERE, PAUSED, RUNNING, Report
from localpuppet.rollout.execution.state import State
from localpuppet.web.dashboard.row import SILENT, Row


class _Word(StrEnum):
    """What can be asked for, as it stands in a URL."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return it.

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
        return _LABELS[self]


class Action(_Word):
    """What a node can be asked for, as it stands in a URL."""

    TRIGGER = "trigger"
    NOOP = "noop"
    HOLD = "hold"
    ENABLE = "enable"


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


class Course(_Word):
    """What a person may have a rollout do, as it stands in a URL."""

    CONTINUE = "continue"
    STOP = "stop"
    ROLLBACK = "rollback"
    RESUME = "resume"


_LABELS: Mapping[_Word, str] = {
    Action.TRIGGER: "Trigger a run",
    Action.NOOP: "Noop run",
    Action.HOLD: "Put on hold",
    Action.ENABLE: "End my hold",
    Course.CONTINUE: "Continue the rollout",
    Course.STOP: "Stop the rollout",
    Course.ROLLBACK: "Take the release back",
    Course.RESUME: "Resume the rollout",
}
_COURSE_WILL = {
    Course.CONTINUE: "It goes on with its next nodes: what failed so far is accepted.",
    Course.STOP: (
        "No further node starts. Runs that are on end first; then the nodes are given back as they"
        " were."
    ),
    Course.ROLLBACK: (
        "No further node starts. Runs that are on end first; then the nodes that took the release"
        " go back to their newest good run of before it, the last group first."
    ),
    Course.RESUME: (
        "A process of its own goes on with it on this machine, in your name, also when this page"
        " ends. Runs that were begun are not begun again: their nodes are asked how they ended."
    ),
}


def courses(report: Report) -> tuple[Course, ...]:
    """Return what a rollout can be made to do where it is."""
    if report.word == ELSEWHERE:
        return ()
    if report.word in (RUNNING, PAUSED):
        gives = report.state.began.options.delivery is not None and not report.state.goes_back
        return Course.CONTINUE, Course.STOP, *((Course.ROLLBACK,) if gives else ())
    resumable = report.state.over is None or report.state.resumable
    return (Course.RESUME,) if resumable else ()


def rollout_consequences(course: Course, report: Report) -> tuple[str, ...]:
    """Return what will happen to a rollout, sentence by sentence.

    Args:
        course: What it is to do.
        report: What is known of it.
    """
    if report.word == ELSEWHERE:
        words = f"'localpuppet rollout {course} {report.state.began.id}'"
        return (f"Nothing from here: it went on on another machine. {words} reaches it.",)
    found = [_COURSE_WILL[course]]
    goes_on = report.word in (RUNNING, PAUSED)
    if course is Course.RESUME:
        if course in courses(report):
            left = sum(fate is None for fate in report.state.fates().values())
            found.append(f"{left} node{'s are' if left != 1 else ' is'} left.")
            found.append("The policies of nodes decide, as when it began.")
        elif goes_on:
            found.append("A process goes on with it already.")
        else:
            found.append(f"It is over: {report.word}.")
    elif not goes_on:
        found.append(f"It is {report.word}: no process goes on with it that could hear this.")
    elif course is Course.CONTINUE and report.word != PAUSED:
        found.append("It does not wait for a word.")
    elif course is Course.CONTINUE:
        found.append(f"It is paused: {report.why}.")
    elif course is Course.ROLLBACK:
        found += _goes_back(report.state)
    return tuple(found)


def _goes_back(state: State) -> tuple[str, ...]:
    """Return what it means for which nodes that a release is taken back, sentence by sentence."""
    delivery = state.began.options.delivery
    if delivery is None:
        return ("It gave no node a release: there is nothing to take back.",)
    if state.goes_back:
        return ("Its nodes go back already.",)
    names = sorted(state.took)
    if not names:
        return (f"No node has taken {delivery.release} yet.",)
    does = "has" if len(names) == 1 else "have"
    return (
        f"{shown_names(names)} {does} taken {delivery.release}, or may have: each runs once more.",
        "What the earlier release does not manage stays as it is.",
        "The rollout is over then, and cannot be resumed.",
    )
