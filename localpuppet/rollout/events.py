"""The events of a rollout, as its journal holds them; a rollout has no other memory."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.converter import from_record, register_form, to_record
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.formats.times import checked_time
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.outbox import AwaitedEntry
from localpuppet.node.enc.document import Classes, EncData
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout.rollout_options import Amount, Approval, RolloutOptions, UnapprovedChange
from localpuppet.rollout.site import Check, parse_check, to_json


class NodeResult(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNRESPONSIVE = "unresponsive"
    NOT_REACHED = "not reached"
    SKIPPED = "skipped"
    ROLLED_BACK = "rolled back"
    ROLLBACK_FAILED = "rollback failed"


HOLD = 600.0  # seconds until a hold expires that is not renewed
# What 'rollout run --failed-in' runs again.
REPEATED = frozenset(NodeResult) - {NodeResult.SUCCEEDED, NodeResult.SKIPPED}


class RolloutEnding(StrEnum):
    """Why a rollout is over."""

    DONE = "done"  # every selected node ran
    FAILED = "failed"  # more nodes than allowed, or a canary
    NOT_READY = "not ready"  # rejected before anything changed
    STOPPED = "stopped"  # by an operator
    ROLLED_BACK = "rolled back"  # an operator rolled the nodes back to their previous release


class NodeRun(NamedTuple):
    # The group, from 1. The run that takes a node back to its previous release has the number of
    # groups plus 1.
    step: int
    node: NodeName


class ExportDependency(Value):
    """Nodes that consume what other nodes produce, sorted.

    A node may be in both; it does not wait for itself.
    """

    producers: tuple[NodeName, ...]
    consumers: tuple[NodeName, ...]


class RolloutBegan(Value):
    """The rollout begins: the first event of each journal."""

    id: RolloutId
    caller: str
    groups: tuple[tuple[NodeName, ...], ...]  # the nodes of each group, sorted
    options: RolloutOptions
    title: str
    # Node → the nodes that consume what it produces; nodes without consumers are missing. Empty if
    # no node may be left out of the rollout.
    consumers: Mapping[NodeName, tuple[NodeName, ...]] = field(default_factory=dict)
    parent: RolloutId | None = None  # the rollout whose failed nodes this one repeats
    # Node run → its checks besides those of the options; runs without any are missing.
    checks: Mapping[NodeRun, tuple[Check, ...]] = field(default_factory=dict)
    # Node → its value of the fact `one_at_a_time_by`; nodes with different values do not run at the
    # same time. Empty without that option.
    places: Mapping[NodeName, str] = field(default_factory=dict)
    # What components consume, as far as nodes of the site produce it.
    needs: tuple[ExportDependency, ...] = ()
    # With noop, the salt of the nodes' change marks; empty if they report no changes.
    salt: str = ""
    # The approved changes; `None` if the rollout compares no changes.
    approval: Approval | None = None


class RolloutResumed(Value):
    """The rollout continues in a new epoch; 0 for the previous one plus 1."""

    epoch: int = 0
    caller: str = ""
    machine: str = ""

    @property
    def who(self) -> str:
        """The new controller and its machine; empty if unknown."""
        return f"{self.caller} on {self.machine}" if self.caller else ""


class LastRunsReported(Value):
    """What nodes report of their runs before they take part.

    Durations are of good runs, the newest first; releases are the most frequent first.
    """

    durations: Mapping[NodeName, tuple[float, ...]]
    releases: Mapping[str, int] = field(default_factory=dict)


class NodesSkipped(Value):
    """Node → why it is not ready; the rollout leaves these nodes out."""

    reasons: Mapping[NodeName, str]


class StagingEnded(Value):
    """The release is on all nodes that will take it."""

    serials: Mapping[NodeName, int]


class NodeRunsStarted(Value):
    """The controller is about to ask these nodes to run."""

    node_runs: tuple[NodeRun, ...]


class NodeRunUnanswered(Value):
    """A node does not answer in a rollback, or answers again; it is asked until the timeout."""

    node_run: NodeRun
    problem: str


class NodeRunEnded(Value):
    """A node run ended, or its node became unresponsive."""

    node_run: NodeRun
    # Its result; `NOT_REACHED` if a node that goes back had not taken the release.
    result: NodeResult
    outcome: str = ""  # the outcome that the node reports; empty if it is unresponsive
    run: str | None = None
    reason: str = ""
    # The inventory entry that the node published then, for nodes that run after it.
    entry: AwaitedEntry | None = None
    predicted_changes: PredictedChanges | None = None


def failed_run(
    node_run: NodeRun, reason: str, result: NodeResult = NodeResult.FAILED
) -> NodeRunEnded:
    """Return the end of a node run that has no outcome."""
    return NodeRunEnded(node_run=node_run, result=result, reason=reason)


class ChangesPredicted(Value):
    """A node reported what its run would change; the controller compared that with the approval.

    If the difference is empty, the node is asked to run next.
    """

    node_run: NodeRun
    difference: UnapprovedChange


class ChangesApproved(Value):
    """An operator approved a difference: the node compares again, and runs if nothing else differs.

    `difference` is the digest of what the operator saw.
    """

    node_run: NodeRun
    difference: str
    approved_by: str


class NodeRunsWithdrawn(Value):
    """The rollout ends before these started node runs take place."""

    node_runs: tuple[NodeRun, ...]


class ChecksEnded(Value):
    """The checks that follow a node run have ended, without a problem if all passed."""

    node_run: NodeRun
    problem: str = ""


class RolloutPaused(Value):
    """No further nodes start until an operator continues or stops the rollout."""

    reason: str
    point: str = ""  # the named point of the plan that causes this pause once; empty after failures
    since: datetime | None = None  # when the pause began, UTC; `None` if it is only decided
    # Whether the operator has to approve changes, instead of continuing.
    needs_approval: bool = False
    # The operator who paused it; empty if the rollout paused itself. Continuing it then accepts no
    # failures.
    requested_by: str = ""


class RolloutContinued(Value):
    """An operator continued a paused rollout, and so accepted the failures until then."""

    caller: str
    machine: str = ""

    @property
    def who(self) -> str:
        """The operator and their machine."""
        return f"{self.caller} on {self.machine}" if self.machine else self.caller


class RolloutStopped(Value):
    """No further nodes start: an operator or failures stopped the rollout."""

    ending: RolloutEnding
    reason: str
    requested_by: str = ""


class RolloutTakenOver(Value):
    """A node reports that another controller has the rollout: this journal ends here.

    `since` is by the clock of that node.
    """

    caller: str
    epoch: int
    since: datetime

    @property
    def who(self) -> str:
        """The other controller, its start and where its events are, one line."""
        return (
            f"by {self.caller} at {self.since:%Y-%m-%d %H:%M:%S UTC}: later events are in that"
            " controller's journal"
        )


class RolloutEnded(Value):
    """The rollout is over; it holds no other nodes than those in these two fields."""

    ending: RolloutEnding
    reason: str
    # Node → why it did not confirm its release; these holds expire.
    still_held: Mapping[NodeName, str]
    # Failed nodes that stay on hold for investigation.
    held_for_investigation: tuple[NodeName, ...] = ()


Event = (
    RolloutBegan
    | RolloutResumed
    | LastRunsReported
    | NodesSkipped
    | StagingEnded
    | NodeRunsStarted
    | NodeRunUnanswered
    | NodeRunEnded
    | ChangesPredicted
    | ChangesApproved
    | NodeRunsWithdrawn
    | ChecksEnded
    | RolloutPaused
    | RolloutContinued
    | RolloutStopped
    | RolloutTakenOver
    | RolloutEnded
)


TimedEvent = tuple[str, Event]  # with the time of its writing, ISO 8601

# The value of `event`; independent of the class names, which may change.
_KINDS: Mapping[type[Event], str] = {
    RolloutBegan: "rollout_began",
    RolloutResumed: "rollout_resumed",
    LastRunsReported: "last_runs_reported",
    NodesSkipped: "nodes_skipped",
    StagingEnded: "staging_ended",
    NodeRunsStarted: "node_runs_started",
    NodeRunUnanswered: "node_run_unanswered",
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
    return {"event": _KINDS[type(event)], **to_record(event)}


def from_dict(raw: Mapping[str, Any]) -> Event:
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


def _read_timed(raw: list[Any]) -> TimedEvent:
    at, event = raw
    return checked_time(at), from_dict(event)


def _read_checks(raw: list[Any]) -> dict[NodeRun, tuple[Check, ...]]:
    return {
        from_record(NodeRun, node_run): tuple(parse_check(check, "checks") for check in checks)
        for node_run, checks in raw
    }


def _write_checks(checks: Mapping[NodeRun, tuple[Check, ...]]) -> list[Any]:
    return [[[*node_run], [*map(to_json, texts)]] for node_run, texts in checks.items()]


# Forms with rules or limits of their own.
register_form(Amount, read=lambda raw: Amount.parse(raw, what="amount", minimum=0), write=str)
register_form(TimedEvent, read=_read_timed, write=lambda timed: [timed[0], to_dict(timed[1])])
register_form(Check, read=lambda raw: parse_check(raw, "checks"), write=to_json)
register_form(Mapping[NodeRun, tuple[Check, ...]], read=_read_checks, write=_write_checks)
register_form(Classes, read=lambda raw: EncData.from_dict({"classes": raw}).classes)
