"""The JSON form of rollout events, in journals and checkpoints: a kind and the fields.

Reading is strict (`fleet.records`).
"""

from collections.abc import Mapping
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.fleet.records import from_record, register_form, to_record
from localpuppet.node.enc.document import Classes, EncData
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout.execution.amount import Amount
from localpuppet.rollout.execution.changes.comparing import UnapprovedChange
from localpuppet.rollout.execution.events import (
    ChangesApproved,
    ChangesPredicted,
    ChecksEnded,
    Event,
    LastRunsReported,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    NodeRunsWithdrawn,
    NodesSkipped,
    RolloutBegan,
    RolloutContinued,
    RolloutEnded,
    RolloutPaused,
    RolloutResumed,
    RolloutStopped,
    RolloutTakenOver,
    StagingEnded,
)
from localpuppet.rollout.plans.check import Check, parse_check, to_json

# The value of `event`; independent of the class names, which may change.
_KINDS: Mapping[type[Event], str] = {
    RolloutBegan: "rollout_began",
    RolloutResumed: "rollout_resumed",
    LastRunsReported: "last_runs_reported",
    NodesSkipped: "nodes_skipped",
    StagingEnded: "staging_ended",
    NodeRunsStarted: "node_runs_started",
    NodeRunEnded: "node_run_ended",
    ChecksEnded: "checks_ended",
    ChangesPredicted: "changes_predicted",
    ChangesApproved: "changes_approved",
    NodeRunsWithdrawn: "node_runs_withdrawn",
    RolloutPaused: "rollout_paused",
    RolloutTakenOver: "rollout_taken_over",
    RolloutContinued: "rollout_continued",
    RolloutStopped: "rollout_stopped",
    RolloutEnded: "rollout_ended",
}
_CLASSES = {kind: class_ for class_, kind in _KINDS.items()}


def to_dict(event: Event) -> dict[str, Any]:
    """Return an event's JSON form."""
    return {"event": _KINDS[type(event)], **to_record(event)}


def from_dict(raw: Mapping[str, Any]) -> Event:
    """Return an event from its JSON form.

    Raises:
        StateError: This version does not know the event, or it is malformed.
    """
    try:
        fields = dict(raw)
        event: Event = from_record(_CLASSES[fields.pop("event")], fields)
        if (
            isinstance(event, NodeRunEnded)
            and event.entry is not None
            and event.entry.node != event.node_run.node
        ):
            raise ValueError(f"its entry is of {event.entry.node}")
    except (KeyError, TypeError, ValueError, InvalidInputError) as error:
        raise StateError(
            f"holds an event that this version does not know: {error}", hint="update localpuppet"
        ) from error
    return event


def _read_checks(raw: list[Any]) -> dict[NodeRun, tuple[Check, ...]]:
    return {
        from_record(NodeRun, node_run): tuple(parse_check(check, "checks") for check in checks)
        for node_run, checks in raw
    }


def _write_checks(checks: Mapping[NodeRun, tuple[Check, ...]]) -> list[Any]:
    return [[[*node_run], [*map(to_json, texts)]] for node_run, texts in checks.items()]


# Forms with rules or limits of their own.
register_form(Amount, read=lambda raw: Amount.parse(raw, what="amount", minimum=0), write=str)
register_form(Check, read=lambda raw: parse_check(raw, "checks"), write=to_json)
register_form(Mapping[NodeRun, tuple[Check, ...]], read=_read_checks, write=_write_checks)
register_form(Classes, read=lambda raw: EncData.from_dict({"classes": raw}).classes)
for _form in (PredictedChanges, UnapprovedChange):
    register_form(_form, read=_form.from_dict, write=_form.to_dict)
