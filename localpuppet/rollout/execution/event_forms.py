"""The JSON form of rollout events, in journals and checkpoints.

Reading is strict. Fields that a later version added have defaults, so forms of earlier versions
stay readable.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from localpuppet.base.errors import LocalpuppetError, StateError
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.fleet.inventory.awaited_entry import AwaitedEntry
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout.execution.changes.approval import Approval
from localpuppet.rollout.execution.changes.comparing import UnapprovedChange
from localpuppet.rollout.execution.events import (
    ChangesApproved,
    ChangesPredicted,
    ChecksEnded,
    DurationsMeasured,
    Event,
    ExportDependency,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    NodeRunsWithdrawn,
    NodesSkipped,
    RolloutBegan,
    RolloutContinued,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutResumed,
    RolloutStopped,
    RolloutTakenOver,
    StagingEnded,
)
from localpuppet.rollout.execution.options import RolloutOptions
from localpuppet.rollout.plans.check import parse_check, to_json


def to_dict(event: Event) -> dict[str, Any]:
    """Return an event's JSON form."""
    kind = {"event": _KINDS[type(event)]}
    if isinstance(event, RolloutBegan):
        return {
            **kind,
            "id": event.id,
            "caller": event.caller,
            "groups": [list(group) for group in event.groups],
            "options": event.options.to_dict(),
            "title": event.title,
            "consumers": {node: list(others) for node, others in event.consumers.items()},
            "parent": event.parent,
            "checks": [
                [turn.step, turn.node, [to_json(check) for check in checks]]
                for turn, checks in event.checks.items()
            ],
            "places": dict(event.places),
            "needs": [[[*one.producers], [*one.consumers]] for one in event.needs],
            "salt": event.salt,
            "approval": None if event.approval is None else event.approval.to_dict(),
        }
    if isinstance(event, DurationsMeasured):
        return {**kind, "durations": {node: [*found] for node, found in event.durations.items()}}
    if isinstance(event, NodesSkipped):
        return {**kind, "reasons": dict(event.reasons)}
    if isinstance(event, StagingEnded):
        return {**kind, "serials": dict(event.serials)}
    if isinstance(
        event,
        NodeRunsStarted
        | NodeRunEnded
        | ChangesPredicted
        | ChangesApproved
        | NodeRunsWithdrawn
        | ChecksEnded,
    ):
        return {**kind, **_of_turns(event)}
    if isinstance(event, RolloutStopped | RolloutPaused | RolloutTakenOver):
        return {**kind, **_of_ends(event)}
    if isinstance(event, RolloutContinued):
        return {**kind, "caller": event.caller, "machine": event.machine}
    if isinstance(event, RolloutEnded):
        return {
            **kind,
            "ending": str(event.ending),
            "reason": event.reason,
            "still_held": dict(event.still_held),
            "held_for_investigation": list(event.held_for_investigation),
        }
    return {**kind, "epoch": event.epoch, "caller": event.caller, "machine": event.machine}


def _of_ends(event: RolloutStopped | RolloutPaused | RolloutTakenOver) -> dict[str, Any]:
    """Return the JSON form of an event that stops or pauses a rollout, or ends this process."""
    if isinstance(event, RolloutStopped):
        return {"ending": str(event.ending), "reason": event.reason}
    since = None if event.since is None else show_time(event.since)
    if isinstance(event, RolloutTakenOver):
        return {"caller": event.caller, "epoch": event.epoch, "since": since}
    approval = {"needs_approval": True} if event.needs_approval else {}
    return {"reason": event.reason, "point": event.point, "since": since, **approval}


def _of_turns(
    event: NodeRunsStarted
    | NodeRunEnded
    | ChangesPredicted
    | ChangesApproved
    | NodeRunsWithdrawn
    | ChecksEnded,
) -> dict[str, Any]:
    if isinstance(event, NodeRunsStarted | NodeRunsWithdrawn):
        return {"node_runs": [[turn.step, turn.node] for turn in event.node_runs]}
    turn = [event.node_run.step, event.node_run.node]
    if isinstance(event, ChecksEnded):
        return {"node_run": turn, "problem": event.problem}
    if isinstance(event, ChangesPredicted):
        return {"node_run": turn, "difference": event.difference.to_dict()}
    if isinstance(event, ChangesApproved):
        return {"node_run": turn, "difference": event.difference, "approved_by": event.approved_by}
    changes = event.predicted_changes
    return {
        "node_run": turn,
        "result": str(event.result),
        "outcome": event.outcome,
        "run": event.run,
        "reason": event.reason,
        **({} if event.entry is None else {"entry": [event.entry.digest, event.entry.at]}),
        **({} if changes is None else {"predicted_changes": changes.to_dict()}),
    }


def from_dict(raw: Mapping[str, Any]) -> Event:
    """Return an event from its JSON form.

    Raises:
        StateError: This version does not know the event, or it is malformed.
    """
    try:
        return _READERS[raw["event"]](raw)
    except (
        KeyError,
        TypeError,
        ValueError,
        OverflowError,  # a number without a value: 1e999
        AttributeError,
        LocalpuppetError,
    ) as error:
        raise StateError(
            f"holds an event that this version does not know: {error}", hint="update localpuppet"
        ) from error


def _began(raw: Mapping[str, Any]) -> Event:
    parent = raw["parent"]
    return RolloutBegan(
        id=RolloutId.parse(raw["id"]),
        caller=str(raw["caller"]),
        groups=tuple(tuple(map(NodeName.parse, group)) for group in raw["groups"]),
        options=RolloutOptions.from_dict(raw["options"]),
        title=str(raw["title"]),
        consumers={
            NodeName.parse(node): tuple(map(NodeName.parse, others))
            for node, others in raw["consumers"].items()
        },
        parent=None if parent is None else RolloutId.parse(parent),
        checks={
            _turn(turn): tuple(parse_check(check, "checks") for check in checks)
            for *turn, checks in raw.get("checks", ())
        },
        places=_named(raw.get("places", {})),
        needs=tuple(
            ExportDependency(
                producers=tuple(map(NodeName.parse, producers)),
                consumers=tuple(map(NodeName.parse, consumers)),
            )
            for producers, consumers in raw.get("needs", ())
        ),
        salt=str(raw.get("salt", "")),
        approval=None if raw.get("approval") is None else Approval.from_dict(raw["approval"]),
    )


def _ended(raw: Mapping[str, Any]) -> Event:
    turn, (digest, at) = _turn(raw["node_run"]), raw.get("entry") or (None, 0.0)
    return NodeRunEnded(
        node_run=turn,
        result=NodeResult(raw["result"]),
        outcome=str(raw["outcome"]),
        run=None if raw["run"] is None else str(raw["run"]),
        reason=str(raw["reason"]),
        entry=None
        if digest is None
        else AwaitedEntry(node=turn.node, digest=str(digest), at=float(at)),
        predicted_changes=None
        if raw.get("predicted_changes") is None
        else PredictedChanges.from_dict(raw["predicted_changes"]),
    )


def _over(raw: Mapping[str, Any]) -> Event:
    return RolloutEnded(
        ending=RolloutEnding(raw["ending"]),
        reason=str(raw["reason"]),
        still_held=_named(raw["still_held"]),
        held_for_investigation=tuple(map(NodeName.parse, raw.get("held_for_investigation", ()))),
    )


def _named(raw: Mapping[str, Any]) -> dict[NodeName, str]:
    return {NodeName.parse(name): str(why) for name, why in raw.items()}


def _turn(raw: Sequence[Any]) -> NodeRun:
    step, node = raw
    return NodeRun(int(step), NodeName.parse(node))


# The value of `event`; independent of the class names, which may change.
_KINDS: Mapping[type[Event], str] = {
    RolloutBegan: "rollout_began",
    RolloutResumed: "rollout_resumed",
    DurationsMeasured: "durations_measured",
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

_READERS = {
    "rollout_began": _began,
    "rollout_resumed": lambda raw: RolloutResumed(
        epoch=int(raw.get("epoch", 0)),
        caller=str(raw.get("caller", "")),
        machine=str(raw.get("machine", "")),
    ),
    "durations_measured": lambda raw: DurationsMeasured(
        durations={
            NodeName.parse(node): tuple(map(float, seconds))
            for node, seconds in raw["durations"].items()
        }
    ),
    "nodes_skipped": lambda raw: NodesSkipped(reasons=_named(raw["reasons"])),
    "staging_ended": lambda raw: StagingEnded(
        serials={NodeName.parse(node): int(serial) for node, serial in raw["serials"].items()}
    ),
    "node_runs_started": lambda raw: NodeRunsStarted(node_runs=tuple(map(_turn, raw["node_runs"]))),
    "node_run_ended": _ended,
    "checks_ended": lambda raw: ChecksEnded(
        node_run=_turn(raw["node_run"]), problem=str(raw["problem"])
    ),
    "changes_predicted": lambda raw: ChangesPredicted(
        node_run=_turn(raw["node_run"]), difference=UnapprovedChange.from_dict(raw["difference"])
    ),
    "changes_approved": lambda raw: ChangesApproved(
        node_run=_turn(raw["node_run"]),
        difference=str(raw["difference"]),
        approved_by=str(raw["approved_by"]),
    ),
    "node_runs_withdrawn": lambda raw: NodeRunsWithdrawn(
        node_runs=tuple(map(_turn, raw["node_runs"]))
    ),
    "rollout_paused": lambda raw: RolloutPaused(
        reason=str(raw["reason"]),
        point=str(raw["point"]),
        since=parse_time(raw["since"]) if raw.get("since") else None,
        needs_approval=bool(raw.get("needs_approval", False)),
    ),
    "rollout_taken_over": lambda raw: RolloutTakenOver(
        caller=str(raw["caller"]), epoch=int(raw["epoch"]), since=parse_time(raw["since"])
    ),
    "rollout_continued": lambda raw: RolloutContinued(
        caller=str(raw["caller"]), machine=str(raw.get("machine", ""))
    ),
    "rollout_stopped": lambda raw: RolloutStopped(
        ending=RolloutEnding(raw["ending"]), reason=str(raw["reason"])
    ),
    "rollout_ended": _over,
}
