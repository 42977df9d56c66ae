"""The actions that people can request from the dashboard for nodes and rollouts, and their effects.

The dashboard decides nothing: each node's own policy decides about a request.
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
from localpuppet.fleet.inventory.node_row import UNRESPONSIVE, NodeRow
from localpuppet.rollout.execution.report import ELSEWHERE, PAUSED, RUNNING, RolloutReport
from localpuppet.rollout.execution.state import RolloutState


class _Word(StrEnum):
    """An action as a word in a URL."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the action.

        Raises:
            InvalidInputError: The text is not an action.
        """
        try:
            return cls(text)
        except ValueError as error:
            raise InvalidInputError(f"is not one of {', '.join(cls)}", where="action") from error

    @property
    def label(self) -> str:
        """Return the label of its button."""
        return _LABELS[self]


class Action(_Word):
    """An action of a node, as a word in a URL."""

    TRIGGER = "trigger"
    NOOP = "noop"
    HOLD = "hold"
    ENABLE = "enable"


_WILL = {
    Action.TRIGGER: (
        "localpuppet sends it a trigger in your name. A run of the node's release follows."
    ),
    Action.NOOP: "localpuppet requests a run with --noop: Puppet reports what it would change.",
    Action.HOLD: (
        "No run starts on it until the hold ends: neither by timer nor by trigger nor by a Puppet"
        " agent. A run that has started continues."
    ),
    Action.ENABLE: "Your hold on it ends. Holds of other operators remain.",
}
# The action in the node's policy.
NEEDS = {
    Action.TRIGGER: "trigger",
    Action.NOOP: "runonce",
    Action.HOLD: "disable",
    Action.ENABLE: "enable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAction:
    """A request for an action of a node.

    Attributes:
        action: The action.
        node: The node.
        message: The reason of a hold.
        length: The length of a hold, `2h`; empty for unlimited.
    """

    action: Action
    node: NodeName
    message: str = ""
    length: str = ""

    @classmethod
    def read(cls, action: Action, node: NodeName, form: Mapping[str, str]) -> "NodeAction":
        """Return the request in a form.

        Args:
            action: The action.
            node: The node.
            form: The fields of the form.

        Raises:
            InvalidInputError: A field is invalid.
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
        """Return the request for the log."""
        if self.action is not Action.HOLD:
            return str(self.action)
        return f"hold ({f'for {self.length}' if self.length else 'without end'}: {self.message})"


def consequences(action: Action, row: NodeRow) -> tuple[str, ...]:
    """Return the consequences, sentence by sentence.

    Args:
        action: The action.
        row: The node's row.
    """
    found = [_WILL[action]]
    runs = action in (Action.TRIGGER, Action.NOOP)
    if row.state == UNRESPONSIVE:
        found.append("It is unresponsive: it may not receive the request.")
    if runs and row.holds:
        found.append("It is on hold: no run starts before the hold ends.")
    elif runs and row.cause:
        found.append("A run is in progress; the new one follows it.")
    if action is Action.ENABLE and not row.holds:
        found.append("It reports that it is not on hold.")
    found.append(f"Its policy must allow you the action {NEEDS[action]}.")
    return tuple(found)


class RolloutAction(_Word):
    """An action of a rollout, as a word in a URL."""

    CONTINUE = "continue"
    STOP = "stop"
    ROLLBACK = "rollback"
    RESUME = "resume"


_LABELS: Mapping[_Word, str] = {
    Action.TRIGGER: "Trigger a run",
    Action.NOOP: "Noop run",
    Action.HOLD: "Put on hold",
    Action.ENABLE: "End my hold",
    RolloutAction.CONTINUE: "Continue the rollout",
    RolloutAction.STOP: "Stop the rollout",
    RolloutAction.ROLLBACK: "Roll the release back",
    RolloutAction.RESUME: "Resume the rollout",
}
_COURSE_WILL = {
    RolloutAction.CONTINUE: "It continues with its next nodes and accepts the failures so far.",
    RolloutAction.STOP: (
        "No further node starts. Started runs end first. Then the rollout releases its nodes."
    ),
    RolloutAction.ROLLBACK: (
        "No further node starts. Started runs end first. Then the nodes that took the release"
        " return to their last good run before it, the last group first."
    ),
    RolloutAction.RESUME: (
        "A separate process continues it on this machine, in your name, even if this dashboard"
        " ends. Started runs are not repeated: their nodes report the results."
    ),
}


def courses(report: RolloutReport) -> tuple[RolloutAction, ...]:
    """Return the possible actions of a rollout in its state."""
    if report.word == ELSEWHERE:
        return ()
    if report.word in (RUNNING, PAUSED):
        gives = report.state.began.options.delivery is not None and not report.state.goes_back
        return (
            RolloutAction.CONTINUE,
            RolloutAction.STOP,
            *((RolloutAction.ROLLBACK,) if gives else ()),
        )
    resumable = report.state.over is None or report.state.resumable
    return (RolloutAction.RESUME,) if resumable else ()


def rollout_consequences(course: RolloutAction, report: RolloutReport) -> tuple[str, ...]:
    """Return the consequences for a rollout, sentence by sentence.

    Args:
        course: The action.
        report: The rollout's report.
    """
    if report.word == ELSEWHERE:
        words = f"'localpuppet rollout {course} {report.state.began.id}'"
        return (f"Nothing: another machine continues it. Use {words}.",)
    found = [_COURSE_WILL[course]]
    goes_on = report.word in (RUNNING, PAUSED)
    if course is RolloutAction.RESUME:
        if course in courses(report):
            left = sum(result is None for result in report.state.results().values())
            found.append(f"{left} node{'s have' if left != 1 else ' has'} no result yet.")
            found.append("The policies of the nodes decide, as when the rollout started.")
        elif goes_on:
            found.append("A process runs it already.")
        else:
            found.append(f"It has ended: {report.word}.")
    elif not goes_on:
        found.append(f"It is {report.word}: no process is running that could receive the command.")
    elif course is RolloutAction.CONTINUE and report.word != PAUSED:
        found.append("It does not wait for a command.")
    elif course is RolloutAction.CONTINUE:
        found.append(f"It is paused: {report.why}.")
    elif course is RolloutAction.ROLLBACK:
        found += _goes_back(report.state)
    return tuple(found)


def _goes_back(state: RolloutState) -> tuple[str, ...]:
    """Return the consequences of taking back a release, sentence by sentence."""
    delivery = state.began.options.delivery
    if delivery is None:
        return ("It gave no node a release: there is nothing to roll back.",)
    if state.goes_back:
        return ("Its nodes roll back already.",)
    names = sorted(state.took)
    if not names:
        return (f"No node has taken {delivery.release} yet.",)
    does = "has" if len(names) == 1 else "have"
    return (
        f"{shown_names(names)} {does} taken {delivery.release}, or may have: each runs once more.",
        "Resources that the earlier release does not manage stay as they are.",
        "The rollout ends then, and you cannot resume it.",
    )
