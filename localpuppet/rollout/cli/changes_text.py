"""Print what nodes would change, and what of that was not approved."""

from collections.abc import Iterator, Sequence

from localpuppet.node.cli import render
from localpuppet.node.puppet.changes import PredictedChanges, PropertyChange
from localpuppet.rollout.deciding import approval_of, not_approvable
from localpuppet.rollout.events import (
    ChangesApproved,
    ChangesPredicted,
    Event,
    NodeRun,
    NodeRunEnded,
)
from localpuppet.rollout.rollout_options import UnapprovedChange
from localpuppet.rollout.state import RolloutState

SHOWN = 5  # changes of a node while a rollout is running


def foreseen(predicted: PredictedChanges) -> str:
    """Return how much a node would change."""
    return f"would change {render.counted(predicted.total, 'property')}"


def changes(property_changes: Sequence[PropertyChange], *, most: int = SHOWN) -> Iterator[str]:
    """Yield a line for each change up to `most`, and one for the number of others."""
    for change in property_changes[:most]:
        yield render.hanging("    ", render.user_text(str(change)))
    if len(property_changes) > most:
        yield f"    and {len(property_changes) - most} more: 'localpuppet rollout report' has all"


def of_event(event: Event) -> Iterator[str]:
    """Yield the lines about an event's changes, while a rollout is running."""
    if isinstance(event, NodeRunEnded) and event.predicted_changes is not None:
        yield from changes(event.predicted_changes.changes)
    elif isinstance(event, ChangesPredicted) and event.difference:
        yield from difference(event.node_run, event.difference)
    elif isinstance(event, ChangesApproved):
        yield f"{render.user_text(event.approved_by)} approved what {event.node_run.node} changes"


def difference(turn: NodeRun, unapproved: UnapprovedChange, *, most: int = SHOWN) -> Iterator[str]:
    """Yield the lines about a node's changes that were not approved."""
    why = render.user_text(unapproved.reason)
    yield render.hanging("", f"{turn.node}  {why} (difference {unapproved.digest})")
    yield from changes(unapproved.others, most=most)


def decides(state: RolloutState) -> str:
    """Return the commands that decide about a pending approval."""
    node = min(state.differing, default=NodeRun(0, state.nodes[0])).node
    return f"'localpuppet rollout approve {state.began.id} {node}' or 'stop' decides"


def digest(state: RolloutState) -> Iterator[str]:
    """Yield the lines about the digest of a finished rollout with noop."""
    if not state.began.options.noop or state.over is None:
        return
    approval = approval_of(state)
    if approval is None:
        yield render.hanging("", f"nothing to approve: {not_approvable(state)}")
        return
    total = sum(predicted.total for predicted in approval.nodes.values())
    yield f"{render.counted(total, 'property')} would change; the digest of that:"
    yield f"  {approval.digest}"
    yield "'localpuppet rollout run --approve DIGEST' with the same selection"
    yield "runs it if nothing else would change"
