"""The port through which the agent has runs done, what crosses it, and what keeps runs from it.

Implementations: `agent.fork_runner` (a child that does what `localpuppet apply` does),
`agent.command_runner` (a site's own command).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from localpuppet.base.formats.values import Json
from localpuppet.fleet.triggers.cause import Cause
from localpuppet.node.runs.hold import Held


class Fate(StrEnum):
    """What became of a run that was asked for."""

    OVER = "over"  # it started, and has ended
    BUSY = "busy"  # it did not start: another run has the node, or it is on hold
    IMPOSSIBLE = "impossible"  # it did not start, and would not if it were tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run went.

    Attributes:
        fate: Whether it started.
        run: Its id, if it has one.
        outcome: How it ended, in the words of the record.
        reason: One line: why it failed, or did not start.
        told: What it has to tell besides.
    """

    fate: Fate
    run: str | None = None
    outcome: str = ""
    reason: str = ""
    told: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a run is for.

    Attributes:
        causes: `Batch.to_dict()` and `paths`, all of them: what its record keeps.
        text: The same for people.
        noop: Whether every cause wants no change.
        puppet_tags: Puppet tags that limit it; empty for everything.
        through: The owner of the hold that does not stop it; `None` where every hold does.
    """

    causes: Mapping[str, Any]
    text: str
    noop: bool = False
    puppet_tags: tuple[str, ...] = ()
    through: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacles:
    """What keeps a run that is due from its beginning.

    Attributes:
        held: Returns why the node does not run for now, or `None`.
        lacking: Returns which entries a step waits for that this node does not have; see
            `fleet.triggers.steps.Steps`.
        begun: Returns how the run of a cause stands that an earlier agent began; see
            `restored_steps.RestoredSteps`.
    """

    held: Callable[[], Held | None]
    lacking: Callable[[Cause], str] = lambda _: ""
    begun: "Callable[[Cause], RunEnd | None]" = lambda _: None


class Runner(Protocol):
    """Does runs, one at a time."""

    async def run(self, order: Order) -> RunEnd:
        """Do a run and return how it went; it raises for bugs only."""
        ...

    def end(self) -> None:
        """Ask the run that is on to end, as TERM does."""
        ...
