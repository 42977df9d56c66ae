"""The JSON form of rollout events, in journals and checkpoints.

Reading is strict: a form has each field, with a value that this version knows.
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
            "why": event.why,
            "left": dict(event.left),
            "kept": list(event.kept),
        }
    return {**kind, "epoch": event.epoch, "caller": event.caller, "machine": event.machine}


def _of_ends(event: RolloutStopped | RolloutPaused | RolloutTakenOver) -> dict[str, Any]:
    """Return the JSON form of an event that stops or pauses a rollout, or ends this process."""
    if isinstance(event, RolloutStopped):
        return {"ending": str(event.ending), "why": event.why}
    since = None if event.since is None else show_time(event.since)
    if isinstance(event, RolloutTakenOver):
        return {"caller": event.caller, "epoch": event.epoch, "since": since}
    return {"why": event.why, "point": event.point, "since": since, "changes": event.changes}


def _of_turns(
    event: NodeRunsStarted
    | NodeRunEnded
    | ChangesPredicted
    | ChangesApproved
    | NodeRunsWithdrawn
    | ChecksEnded,
) -> dict[str, Any]:
    if isinstance(event, NodeRunsStarted | NodeRunsWithdrawn):
        return {"turns": [[turn.step, turn.node] for turn in event.turns]}
    turn = [event.turn.step, event.turn.node]
    if isinstance(event, ChecksEnded):
        return {"turn": turn, "problem": event.problem}
    if isinstance(event, ChangesPredicted):
        return {"turn": turn, "difference": event.difference.to_dict()}
    if isinstance(event, ChangesApproved):
        return {"turn": turn, "difference": event.difference, "who": event.who}
    return {
        "turn": turn,
        "fate": str(event.fate),
        "outcome": event.outcome,
        "run": event.run,
        "reason": event.reason,
        "entry": None if event.entry is None else [event.entry.digest, event.entry.at],
        "foreseen": None if event.foreseen is None else event.foreseen.to_dict(),
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
            for *turn, checks in raw["checks"]
        },
        places=_named(raw["places"]),
        needs=tuple(
            ExportDependency(
                producers=tuple(map(NodeName.parse, producers)),
                consumers=tuple(map(NodeName.parse, consumers)),
            )
            for producers, consumers in raw["needs"]
        ),
        salt=str(raw["salt"]),
        approval=None if raw["approval"] is None else Approval.from_dict(raw["approval"]),
    )


def _ended(raw: Mapping[str, Any]) -> Event:
    turn, (digest, at) = _turn(raw["turn"]), raw["entry"] or (None, 0.0)
    return NodeRunEnded(
        turn=turn,
        fate=NodeResult(raw["fate"]),
        outcome=str(raw["outcome"]),
        run=None if raw["run"] is None else str(raw["run"]),
        reason=str(raw["reason"]),
        entry=None
        if digest is None
        else AwaitedEntry(node=turn.node, digest=str(digest), at=float(at)),
        foreseen=None if raw["foreseen"] is None else PredictedChanges.from_dict(raw["foreseen"]),
    )


def _over(raw: Mapping[str, Any]) -> Event:
    return RolloutEnded(
        ending=RolloutEnding(raw["ending"]),
        why=str(raw["why"]),
        left=_named(raw["left"]),
        kept=tuple(map(NodeName.parse, raw["kept"])),
    )


def _named(raw: Mapping[str, Any]) -> dict[NodeName, str]:
    return {NodeName.parse(name): str(why) for name, why in raw.items()}


def _turn(raw: Sequence[Any]) -> NodeRun:
    step, node = raw
    return NodeRun(int(step), NodeName.parse(node))


# The value of `event`; independent of the class names, which may change.
_KINDS: Mapping[type[Event], str] = {
    RolloutBegan: "began",
    RolloutResumed: "resumed",
    DurationsMeasured: "lasted",
    NodesSkipped: "skipped",
    StagingEnded: "staged",
    NodeRunsStarted: "started",
    NodeRunEnded: "ended",
    ChecksEnded: "checked",
    ChangesPredicted: "looked",
    ChangesApproved: "approved",
    NodeRunsWithdrawn: "withdrawn",
    RolloutPaused: "paused",
    RolloutTakenOver: "overtaken",
    RolloutContinued: "continued",
    RolloutStopped: "stopped",
    RolloutEnded: "over",
}

_READERS = {
    "began": _began,
    "resumed": lambda raw: RolloutResumed(
        epoch=int(raw["epoch"]),
        caller=str(raw["caller"]),
        machine=str(raw["machine"]),
    ),
    "lasted": lambda raw: DurationsMeasured(
        durations={
            NodeName.parse(node): tuple(map(float, seconds))
            for node, seconds in raw["durations"].items()
        }
    ),
    "skipped": lambda raw: NodesSkipped(reasons=_named(raw["reasons"])),
    "staged": lambda raw: StagingEnded(
        serials={NodeName.parse(node): int(serial) for node, serial in raw["serials"].items()}
    ),
    "started": lambda raw: NodeRunsStarted(turns=tuple(map(_turn, raw["turns"]))),
    "ended": _ended,
    "checked": lambda raw: ChecksEnded(turn=_turn(raw["turn"]), problem=str(raw["problem"])),
    "looked": lambda raw: ChangesPredicted(
        turn=_turn(raw["turn"]), difference=UnapprovedChange.from_dict(raw["difference"])
    ),
    "approved": lambda raw: ChangesApproved(
        turn=_turn(raw["turn"]), difference=str(raw["difference"]), who=str(raw["who"])
    ),
    "withdrawn": lambda raw: NodeRunsWithdrawn(turns=tuple(map(_turn, raw["turns"]))),
    "paused": lambda raw: RolloutPaused(
        why=str(raw["why"]),
        point=str(raw["point"]),
        since=None if raw["since"] is None else parse_time(raw["since"]),
        changes=bool(raw["changes"]),
    ),
    "overtaken": lambda raw: RolloutTakenOver(
        caller=str(raw["caller"]), epoch=int(raw["epoch"]), since=parse_time(raw["since"])
    ),
    "continued": lambda raw: RolloutContinued(
        caller=str(raw["caller"]), machine=str(raw["machine"])
    ),
    "stopped": lambda raw: RolloutStopped(ending=RolloutEnding(raw["ending"]), why=str(raw["why"])),
    "over": _over,
}
