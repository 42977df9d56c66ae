"""The port through which the agent executes runs, its values, and what prevents a run.

Implementations: `agent.fork_runner` (a child that does what `localpuppet apply` does),
`agent.command_runner` (a command of the site).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from localpuppet.base.formats.values import Json
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.node.runs.hold import HoldStatus

Work = TypeVar("Work", contravariant=True)


class RequestedRunResult(StrEnum):
    """Whether a requested run started and ended."""

    OVER = "over"  # it started and has ended
    BUSY = "busy"  # it did not start: another run uses the node, or the node is on hold
    IMPOSSIBLE = "impossible"  # it did not start, and would not if it were tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompletion:
    """The result of a run.

    Attributes:
        result: Whether it started and ended.
        run: Its id, if it has one.
        outcome: Its outcome as in the record.
        reason: One line: why it failed or did not start.
        details: Further results.
    """

    result: RequestedRunResult
    run: str | None = None
    outcome: str = ""
    reason: str = ""
    details: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What a run is for.

    Attributes:
        causes: `Batch.to_dict()` with all `paths`: what the record keeps.
        text: The causes as text for people.
        noop: Whether every cause requires a noop run.
        puppet_tags: Puppet tags that limit the run; empty for a complete run.
        through: The owner of the hold that does not stop the run; `None` if every hold does.
    """

    causes: Mapping[str, Any]
    text: str
    noop: bool = False
    puppet_tags: tuple[str, ...] = ()
    through: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObstacles:
    """What prevents a due run from starting.

    Attributes:
        held: Returns what blocks runs now, or `None`.
        lacking: Returns the entries that a step waits for and that this node does not have; see
            `fleet.triggers.steps.Steps`.
        begun: Returns the state of the run of a cause that an earlier agent began; see
            `restored_steps.RestoredSteps`.
    """

    held: Callable[[], HoldStatus | None]
    lacking: Callable[[RunCause], str] = lambda _: ""
    begun: "Callable[[RunCause], RunCompletion | None]" = lambda _: None


class WorkRunner(Protocol[Work]):
    """Executes one kind of work, such as compiling a catalog; see `agent.fork_runner`."""

    async def run(self, order: Work) -> RunCompletion:
        """Do the work and return its result, `OVER` if it was done; exceptions are bugs."""


class Runner(WorkRunner[RunOrder], Protocol):
    """Executes runs, one at a time."""

    def end(self) -> None:
        """End the run in progress as TERM does."""
