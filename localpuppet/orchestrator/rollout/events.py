"""What happens in a rollout, as its journal holds it: nothing else is remembered.

Owns: the events and their JSON form. Refuses to know: what follows from them (`state`), files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from localpuppet.errors import LocalpuppetError, StateError
from localpuppet.formats.names import NodeName, RolloutId
from localpuppet.orchestrator.check import Check, parse_check, to_json
from localpuppet.orchestrator.rollout.options import RolloutOptions


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
class Began:
    """A rollout begins: the first event, and the only one of its kind.

    Attributes:
        id: The rollout.
        caller: Who rolls out, a caller id.
        groups: The nodes of each group, sorted.
        consumers: Node → the nodes that consume what that one produces; those without are left out,
            and all of them where no node may be left out of the rollout.
        options: How.
        title: What is rolled out, for people.
        parent: The rollout whose failed nodes these are.
        checks: The checks that follow a turn, besides those of the options; without those that
            have none.
        places: Of each node the value of the fact of which nodes with different values do not run
            at the same time; empty where the options name none.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The rollout goes on.

    Attributes:
        epoch: Its epoch from now on; 0 for one more than before.
    """

    epoch: int = 0


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
        fate: How, one of succeeded, failed, silent; of a node that was to go back and had not taken
            the release, not reached.
        outcome: How, in the node's own word; empty where it is silent.
        run: The run's id on the node, if it has one.
        reason: Why it did not succeed, one line.
    """

    turn: Turn
    fate: Fate
    outcome: str = ""
    run: str | None = None
    reason: str = ""


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
    """

    why: str
    point: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A rollout that was paused goes on; what failed until now is accepted.

    Attributes:
        caller: Who said so.
    """

    caller: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """No more nodes are started: somebody, or a failure, has stopped the rollout.

    Attributes:
        ending: How the rollout ends by that: by failures, or because somebody stopped it.
        why: One line.
    """

    ending: Ending
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The rollout is over, and no node is held any more but those that did not answer.

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
    | Checked
    | Paused
    | Continued
    | Stopped
    | Over
)


def to_dict(event: Event) -> dict[str, Any]:
    """Return an event's JSON form."""
    kind = {"event": type(event).__name__.lower()}
    if isinstance(event, Began):
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
        }
    if isinstance(event, Lasted):
        return {**kind, "durations": {node: [*found] for node, found in event.durations.items()}}
    if isinstance(event, Skipped):
        return {**kind, "reasons": dict(event.reasons)}
    if isinstance(event, Staged):
        return {**kind, "serials": dict(event.serials)}
    if isinstance(event, Started | Ended | Checked):
        return {**kind, **_of_turns(event)}
    if isinstance(event, Stopped):
        return {**kind, "ending": str(event.ending), "why": event.why}
    if isinstance(event, Paused):
        return {**kind, "why": event.why, "point": event.point}
    if isinstance(event, Continued):
        return {**kind, "caller": event.caller}
    if isinstance(event, Over):
        return {
            **kind,
            "ending": str(event.ending),
            "why": event.why,
            "left": dict(event.left),
            "kept": list(event.kept),
        }
    return {**kind, "epoch": event.epoch}


def _of_turns(event: Started | Ended | Checked) -> dict[str, Any]:
    if isinstance(event, Started):
        return {"turns": [[turn.step, turn.node] for turn in event.turns]}
    turn = [event.turn.step, event.turn.node]
    if isinstance(event, Checked):
        return {"turn": turn, "problem": event.problem}
    return {
        "turn": turn,
        "fate": str(event.fate),
        "outcome": event.outcome,
        "run": event.run,
        "reason": event.reason,
    }


def from_dict(raw: Mapping[str, Any]) -> Event:
    """Return the event.

    Raises:
        StateError: It is not one that this version wrote.
    """
    try:
        return _READERS[raw["event"]](raw)
    except (KeyError, TypeError, ValueError, AttributeError, LocalpuppetError) as error:
        raise StateError(
            f"holds an event that this version does not know: {error}", hint="update localpuppet"
        ) from error


def _began(raw: Mapping[str, Any]) -> Event:
    parent = raw["parent"]
    return Began(
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
    )


def _ended(raw: Mapping[str, Any]) -> Event:
    return Ended(
        turn=_turn(raw["turn"]),
        fate=Fate(raw["fate"]),
        outcome=str(raw["outcome"]),
        run=None if raw["run"] is None else str(raw["run"]),
        reason=str(raw["reason"]),
    )


def _over(raw: Mapping[str, Any]) -> Event:
    return Over(
        ending=Ending(raw["ending"]),
        why=str(raw["why"]),
        left=_named(raw["left"]),
        kept=tuple(map(NodeName.parse, raw.get("kept", ()))),
    )


def _named(raw: Mapping[str, Any]) -> dict[NodeName, str]:
    return {NodeName.parse(name): str(why) for name, why in raw.items()}


def _turn(raw: Sequence[Any]) -> Turn:
    step, node = raw
    return Turn(int(step), NodeName.parse(node))


_READERS = {
    "began": _began,
    "resumed": lambda raw: Resumed(epoch=int(raw.get("epoch", 0))),
    "lasted": lambda raw: Lasted(
        durations={
            NodeName.parse(node): tuple(map(float, seconds))
            for node, seconds in raw["durations"].items()
        }
    ),
    "skipped": lambda raw: Skipped(reasons=_named(raw["reasons"])),
    "staged": lambda raw: Staged(
        serials={NodeName.parse(node): int(serial) for node, serial in raw["serials"].items()}
    ),
    "started": lambda raw: Started(turns=tuple(map(_turn, raw["turns"]))),
    "ended": _ended,
    "checked": lambda raw: Checked(turn=_turn(raw["turn"]), problem=str(raw["problem"])),
    "paused": lambda raw: Paused(why=str(raw["why"]), point=str(raw["point"])),
    "continued": lambda raw: Continued(caller=str(raw["caller"])),
    "stopped": lambda raw: Stopped(ending=Ending(raw["ending"]), why=str(raw["why"])),
    "over": _over,
}
