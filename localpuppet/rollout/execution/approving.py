"""Find the rollout that an approval digest names, and check that a new rollout matches it.

How the changes of one node are compared is in `changes.comparing`.
"""

from collections.abc import Iterable
from itertools import zip_longest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import shown_names
from localpuppet.rollout.execution.changes.approval import Approval, digest_of
from localpuppet.rollout.execution.events import RolloutBegan, RolloutEnding
from localpuppet.rollout.execution.options import RolloutOptions
from localpuppet.rollout.execution.selecting import Groups
from localpuppet.rollout.execution.state import RolloutState

SHORTEST = 12  # the fewest digits of a digest that an operator may write
_WHERE = "--approve"


def not_approvable(state: RolloutState) -> str:
    """Return why the result of a rollout cannot be approved, one line; empty if it can."""
    if not state.began.options.noop:
        return "was not a rollout with --noop"
    if state.over is None or state.over.ending is not RolloutEnding.DONE:
        return "is still running, or was interrupted"
    incomplete = {
        node: predicted for node, predicted in state.predicted_changes.items() if predicted.whole
    }
    if silent := [node for node in state.nodes if node not in incomplete]:
        many = [node for node in silent if node in state.predicted_changes]
        if many:
            return f"{shown_names(many)} would change too many properties to report"
        return f"{shown_names(silent)} did not report what would change"
    return ""


def approval_of(state: RolloutState) -> Approval | None:
    """Return the approval that a rollout with noop offers; `None` if it cannot be approved."""
    if not_approvable(state):
        return None
    began = state.began
    digest = digest_of(
        began.id, groups=began.groups, tags=began.options.tags, nodes=state.predicted_changes
    )
    return Approval(
        rollout=began.id, digest=digest, salt=began.salt, nodes=dict(state.predicted_changes)
    )


def find(states: Iterable[RolloutState], digest: str) -> tuple[Approval, RolloutBegan]:
    """Return the approval that a digest names, and the first event of that rollout.

    Args:
        states: The rollouts of this machine, the newest first.
        digest: The digest, or at least its first `SHORTEST` digits.

    Raises:
        InvalidInputError: No rollout has the digest, or the digest is too short.
    """
    if len(digest) < SHORTEST or set(digest) - set("0123456789abcdef"):
        raise InvalidInputError(
            f"is not a digest: {SHORTEST} to 64 hexadecimal digits", where=_WHERE
        )
    for state in states:
        approval = approval_of(state)
        if approval is not None and approval.digest.startswith(digest):
            return approval, state.began
    raise InvalidInputError(
        "no noop rollout on this machine has that digest",
        where=_WHERE,
        hint="'localpuppet rollout report ID' prints the digest of a noop rollout",
    )


def refuse_other(approved: RolloutBegan, groups: Groups, options: RolloutOptions) -> None:
    """Reject a rollout that differs from the approved one.

    Raises:
        InvalidInputError: The nodes, their order or the tags differ, or an option contradicts
            `--approve`.
    """
    rollout = approved.id
    if options.noop:
        raise InvalidInputError("--approve and --noop exclude each other")
    if options.delivery is not None:
        raise InvalidInputError(
            f"--release and --approve exclude each other: rollout {rollout} had no release"
        )
    if options.tags != approved.options.tags:
        tags = ", ".join(approved.options.tags) or "no tags"
        raise InvalidInputError(f"rollout {rollout} was approved with {tags}", where="--tags")
    now = [node for group in groups for node in group]
    before = [node for group in approved.groups for node in group]
    if more := sorted({*now} - {*before}):
        raise _other(rollout, f"does not have {shown_names(more)}, selected now")
    if less := sorted({*before} - {*now}):
        raise _other(rollout, f"has {shown_names(less)}, not selected now")
    if groups != approved.groups:
        pairs = zip_longest(groups, approved.groups)
        step = next(step for step, (mine, other) in enumerate(pairs, 1) if mine != other)
        raise _other(rollout, f"has a different order from group {step}")


def _other(rollout: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"the approval of rollout {rollout} {what}",
        where=_WHERE,
        hint="run 'localpuppet rollout run --noop' with the same options, and approve its digest",
    )
