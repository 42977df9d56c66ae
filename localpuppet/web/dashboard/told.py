"""What nodes tell of rollouts: which one holds a node, and how its run in it ended.

A node is held by `CALLER/rollout/ID`, and tells the end of each step that a rollout asked for under
the same name. Everybody who may look at the page sees that already, row by row.

Owns: which words of a presence entry are taken for that, and how many. Refuses to know: journals,
where it is kept.

Invariant: these are the words of nodes and not those of a journal. Of a group, of nodes that are
not reached yet and of why a rollout ended they say nothing; a node that was taken over can tell of
a rollout that there never was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RolloutId, RunId
from localpuppet.base.formats.values import Json
from localpuppet.fleet.triggers.outcome import DROPPED, MOST, TriggerOutcome
from localpuppet.node.runs.hold import rollout_of
from localpuppet.node.runs.run import Outcome
from localpuppet.web.dashboard.ended import KEPT
from localpuppet.web.dashboard.row import Held

# Seconds by which a rollout's id may be of later.
AHEAD = 86400.0
OTHER = "other"
_WORDS = frozenset((*Outcome, DROPPED, "ended"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a node tells of a rollout.

    Attributes:
        rollout: Its id.
        caller: Who rolls out, a caller id.
        outcome: How its newest run in it ended, in the node's word, `OTHER` for one that is not
            known; empty where it told of none.
        run: That run's id; empty where it has none.
        until: Till when the rollout holds the node: seconds since 1970; `None` where it does not.
    """

    rollout: RolloutId
    caller: str
    outcome: str = ""
    run: str = ""
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRollout:
    """A rollout, as nodes tell of it.

    Attributes:
        rollout: Its id.
        caller: Who rolls out: of several whom nodes name, the one whom most do; of equal ones
            the one who was named first.
        ends: How many nodes told which outcome last; empty for those that told of none.
        held: How many it holds.
        first: When a node told of it first: seconds since 1970.
        last: When one told something new of it.
    """

    rollout: RolloutId
    caller: str
    ends: Mapping[str, int]
    held: int
    first: float
    last: float

    @property
    def nodes(self) -> int:
        """Return how many nodes told of it."""
        return sum(self.ends.values())


def told_of(status: Mapping[str, Json], holds: tuple[Held, ...], *, now: float) -> tuple[Told, ...]:
    """Return what a node tells of rollouts, each once.

    Args:
        status: What `inventory.presence.believe` returns.
        holds: What holds it, as its row has them.
        now: Seconds since 1970, UTC.
    """
    found: dict[tuple[str, RolloutId], Told] = {}
    settled = status.get("settled")
    for raw in settled[-MOST:] if isinstance(settled, list) else []:
        end = TriggerOutcome.from_dict(raw)
        owner = None if end is None else _owner(end.sender, now)
        if end is not None and owner is not None:
            word = end.outcome if end.outcome in _WORDS else OTHER
            run = _run(end.run or "")
            found[owner] = Told(caller=owner[0], rollout=owner[1], outcome=word, run=run)
    for hold in holds:
        owner = _owner(hold.owner, now)
        if owner is not None and hold.until is not None:
            before = found.get(owner, Told(caller=owner[0], rollout=owner[1]))
            found[owner] = replace(before, until=hold.until)
    return tuple(found.values())


def _run(text: str) -> str:
    try:
        return str(RunId.parse(text))
    except InvalidInputError:
        return ""


def _owner(text: str, now: float) -> tuple[str, RolloutId] | None:
    """Return the caller and the id of a rollout that can be of the time that is remembered."""
    owner = rollout_of(text)
    try:
        at = None if owner is None else owner[1].began().timestamp()
    except ValueError:
        return None
    return owner if at is not None and now - KEPT <= at <= now + AHEAD else None
