"""What happens in a rollout, as its journal holds it: nothing else is remembered.

Owns: the events. Refuses to know: what follows from them (`state`), their JSON form
(`event_forms`), files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.fleet.inventory.awaited import Awaited
from localpuppet.node.puppet.changes import Foreseen
from localpuppet.rollout.execution.changes.approval import Approval
from localpuppet.rollout.execution.changes.comparing import Difference
from localpuppet.rollout.execution.options import RolloutOptions
from localpuppet.rollout.plans.check import Check


class Fate(StrEnum):
    """How a node's part in a rollout ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SILENT = "silent"
    NOT_REACHED = "not reached"
    SKIPPED = "skipped"
    ROLLED_BACK = "rolled back"
    ROLLBACK_FAILED = "rollback failed"


class Ending(StrEnum):
    """Why a rollout is over."""

    DONE = "done"  # every node that was to run did
    FAILURES = "failures"  # more than were allowed, or a canary
    NOT_READY = "not ready"  # refused before anything changed
    STOPPED = "stopped"  # somebody stopped it
    TAKEN_BACK = "taken back"  # somebody had the nodes go back to what they ran before


@dataclass(frozen=True, slots=True, order=True)
class Turn:
    """One run of a node in a rollout.

    Attributes:
        step: The group, from 1; one more than there are groups for the run with which a node goes
            back to what it ran before.
        node: The node.
    """

    step: int
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Nodes that need what other nodes produce.

    Attributes:
        producers: Those that produce it, sorted.
        consumers: Those that need it, sorted; a node may be both, and does not wait for itself.
    """

    producers: tuple[NodeName, ...]
    consumers: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A rollout begins: the first event, and the only one of its kind.

    Attributes:
        id: The rollout.
        caller: Who rolls out, a caller id.
        groups: The nodes of each group, sorted.
        consumers: Node → the nodes that consume what that one produces; nodes without any are not
            in it. Empty where no node may be left out of the rollout.
        options: How.
        title: What is rolled out, for people.
        parent: The rollout whose failed nodes these are.
        checks: Turn → the checks that follow it, besides those of the options; turns without any
            are not in it.
        places: Of each node the value of the fact of which nodes with different values do not run
            at the same time; empty where the options name none.
        needs: What components declare that they consume, as far as it is produced here.
        salt: With noop: what the nodes make the marks of changes with; empty where they tell none.
        approval: What may change; `None` where nobody looks at that.
    """

    id: RolloutId
    caller: str
    groups: tuple[tuple[NodeName, ...], ...]
    options: RolloutOptions
    title: str
    consumers: Mapping[NodeName, tuple[NodeName, ...]] = field(default_factory=dict)
    parent: RolloutId | None = None
    checks: Mapping[Turn, tuple[Check, ...]] = field(default_factory=dict)
    places: Mapping[NodeName, str] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    salt: str = ""
    approval: Approval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The rollout goes on.

    Attributes:
        epoch: Its epoch from now on; 0 for one more than before.
        caller: Who goes on with it, a caller id; empty where that was not told.
        machine: Where, as that machine calls itself.
    """

    epoch: int = 0
    caller: str = ""
    machine: str = ""

    @property
    def who(self) -> str:
        """Who goes on with it, and where; empty where that was not told."""
        return f"{self.caller} on {self.machine}" if self.caller else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasted:
    """How many seconds the last good runs of these nodes took, the newest first."""

    durations: Mapping[NodeName, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """These nodes were not ready, and are left out: node → why."""

    reasons: Mapping[NodeName, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The release is on all nodes that are to take it.

    Attributes:
        serials: That of its assignment on each node.
    """

    serials: Mapping[NodeName, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """These nodes are about to be asked to run."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run is over, or nothing was heard of it.

    Attributes:
        turn: Which.
        fate: How: succeeded, failed or silent; not reached where a node was to go back that had not
            taken the release.
        outcome: How, in the node's own word; empty where it is silent.
        run: The run's id on the node, if it has one.
        reason: Why it did not succeed, one line.
        entry: The entry that the node told the others then, for those who run after it.
        foreseen: With noop: what the run would have changed, where the node tells it.
    """

    turn: Turn
    fate: Fate
    outcome: str = ""
    run: str | None = None
    reason: str = ""
    entry: Awaited | None = None
    foreseen: Foreseen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A node has said what its turn would change, which is compared with what was approved.

    Attributes:
        turn: Which.
        difference: What was not approved; where there is nothing, the node is about to be asked to
            run.
    """

    turn: Turn
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """An operator approved what a turn would change: the node looks again, and runs if that is all.

    Attributes:
        turn: Which.
        difference: The digest of the difference that was shown.
        who: Who, and where.
    """

    turn: Turn
    difference: str
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """These turns were started and are not taken: the rollout ends before they were to run."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The checks that follow a turn are done.

    Attributes:
        turn: Which.
        problem: What is wrong, one line; empty where all passed.
    """

    turn: Turn
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """No more nodes are started until somebody says whether the rollout goes on.

    Attributes:
        why: One line.
        point: The point between two nodes at which this happens once; empty after failures.
        since: When that was decided, UTC; `None` in a journal of an earlier version.
        changes: Whether somebody has to approve what nodes would change, or to stop the rollout.
    """

    why: str
    point: str = ""
    since: datetime | None = None
    changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A rollout that was paused goes on; what failed until now is accepted.

    Attributes:
        caller: Who said so.
        machine: Where, as that machine calls itself; empty where that was not told.
    """

    caller: str
    machine: str = ""

    @property
    def who(self) -> str:
        """Who said so, and where."""
        return f"{self.caller} on {self.machine}" if self.machine else self.caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """No more nodes are started: somebody, or a failure, has stopped the rollout.

    Attributes:
        ending: How the rollout ends by that: by failures, or because somebody said so.
        why: One line.
    """

    ending: Ending
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Somebody else goes on with the rollout, by the word of a node: this journal ends here.

    Attributes:
        caller: Who, a caller id.
        epoch: In which epoch.
        since: Since when, by the clock of a node, UTC.
    """

    caller: str
    epoch: int
    since: datetime

    @property
    def who(self) -> str:
        """Who has it, since when, and where more is told, one line."""
        return (
            f"by {self.caller} at {self.since:%Y-%m-%d %H:%M:%S UTC}: what happened since is in"
            " that one's journal"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The rollout is over, and no node is held any more but those in `left` and `kept`.

    Attributes:
        ending: Why.
        why: One line more; empty where there is nothing to say.
        left: Nodes that did not say that they let go, with the reason: their holds end by
            themselves.
        kept: Nodes that failed and stay held, to be looked into.
    """

    ending: Ending
    why: str
    left: Mapping[NodeName, str]
    kept: tuple[NodeName, ...] = ()


Event = (
    Began
    | Resumed
    | Lasted
    | Skipped
    | Staged
    | Started
    | Ended
    | Looked
    | Approved
    | Withdrawn
    | Checked
    | Paused
    | Continued
    | Stopped
    | Overtaken
    | Over
)
