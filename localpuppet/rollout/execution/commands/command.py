"""The rollout commands: when they are possible, and the event of each.

A new command is a member of `RolloutCommand`, its conditions in `refusal`, and its event in
`meaning`.
"""

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.rollout.execution.changes.comparing import DIGITS, UnapprovedChange
from localpuppet.rollout.execution.events import (
    ChangesApproved,
    Event,
    NodeRun,
    RolloutContinued,
    RolloutEnding,
    RolloutPaused,
    RolloutStopped,
    to_dict,
)
from localpuppet.rollout.execution.state import RolloutState


class RolloutCommand(StrEnum):
    """A rollout command."""

    STOP = "stop"
    PAUSE = "pause"
    CONTINUE = "continue"
    ROLLBACK = "rollback"
    APPROVE = "approve"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCommand:
    """A command that an operator sent.

    Attributes:
        machine: The name of their machine, one line.
        about: For `APPROVE`, the node and the digest of the approved difference, separated by a
            space; for `CONTINUE`, the pause that it ends; empty for other commands.
    """

    command: RolloutCommand
    caller: str
    machine: str
    about: str = ""

    @property
    def who(self) -> str:
        """The operator and their machine."""
        return f"{self.caller} on {self.machine}"


def refusal(sent: SentCommand, state: RolloutState) -> str:
    """Return why a command is not possible in a state, one line; empty if it is."""
    if state.over is not None:
        return f"is over: {state.over.ending}"
    if state.stopped is not None:
        return f"is already ending: {state.stopped.reason}"
    if sent.command is RolloutCommand.APPROVE:
        return "" if _approved(sent, state) else _not_differing(sent, state)
    if sent.command is RolloutCommand.PAUSE and state.paused is not None:
        return f"is already paused: {state.paused.reason}"
    if sent.command is RolloutCommand.CONTINUE and state.paused is None:
        return "is not paused"
    if (
        sent.command is RolloutCommand.CONTINUE
        and state.differing
        and state.paused
        and state.paused.needs_approval
    ):
        nodes = shown_names(sorted(turn.node for turn in state.differing))
        return f"waits until what {nodes} would change is approved"
    if sent.command is RolloutCommand.CONTINUE and sent.about != identify_pause(state):
        return "paused again since then: check what it waits for now"
    if sent.command is RolloutCommand.ROLLBACK and state.began.options.delivery is None:
        return "delivers no release: there is nothing to roll back"
    return ""


def check_not_over(command: RolloutCommand, state: RolloutState) -> None:
    """Reject a command that comes after the end of a rollout, and name the command for that.

    Raises:
        InvalidInputError: The rollout is over.
    """
    if state.over is None:
        return
    rollout, hint = state.began.id, ""
    if command is RolloutCommand.ROLLBACK and state.began.options.delivery is not None:
        (before,) = state.previous if len(state.previous) == 1 else ("APP/tags/OLD",)
        hint = (
            f"'localpuppet rollout run --release {before} --allow-older --nodes NAMES' takes nodes"
            f" back: 'localpuppet rollout report {rollout}' has their names"
        )
    elif state.resumable and command in (RolloutCommand.CONTINUE, RolloutCommand.APPROVE):
        hint = f"run 'localpuppet rollout resume {rollout}'"
    raise InvalidInputError(f"is over: {state.over.ending}", where=str(rollout), hint=hint)


def _approved(sent: SentCommand, state: RolloutState) -> NodeRun | None:
    """Return the node run whose difference is approved; `None` if no difference matches."""
    for turn, difference in state.differing.items():
        if sent.about == about(turn.node, difference):
            return turn
    return None


def _not_differing(sent: SentCommand, state: RolloutState) -> str:
    node = sent.about.partition(" ")[0]
    if not node:
        return "the approval names no node: approve it on the machine that controls the rollout"
    if any(turn.node == node for turn in state.differing):
        return f"the changes of {node} differ now: read the new difference"
    return f"{node} does not wait for an approval"


def about(node: NodeName, difference: UnapprovedChange) -> str:
    """Return the `about` of an approval."""
    return f"{node} {difference.digest}"


def identify_pause(state: RolloutState) -> str:
    """Return the number and the digest of the current pause; empty without one."""
    if state.paused is None:
        return ""
    text = json.dumps(to_dict(state.paused), sort_keys=True)
    return f"{state.pauses} {hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def meaning(sent: SentCommand, state: RolloutState) -> Event:
    """Return the event of a command that `refusal` accepts; a pause without its time."""
    if (turn := _approved(sent, state)) is not None:
        return ChangesApproved(
            node_run=turn, difference=state.differing[turn].digest, approved_by=sent.who
        )
    if sent.command is RolloutCommand.CONTINUE:
        return RolloutContinued(caller=sent.caller, machine=sent.machine)
    if sent.command is RolloutCommand.PAUSE:
        return RolloutPaused(reason=f"paused by {sent.who}", requested_by=sent.who)
    if sent.command is RolloutCommand.ROLLBACK:
        return RolloutStopped(ending=RolloutEnding.ROLLED_BACK, reason=f"rolled back by {sent.who}")
    return RolloutStopped(ending=RolloutEnding.STOPPED, reason=f"stopped by {sent.who}")
