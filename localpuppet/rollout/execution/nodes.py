"""The port through which a rollout reaches its nodes, and the values that cross it.

Implementation: `orchestrator.rollout.fleet`.
"""

from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.awaited import Awaited
from localpuppet.node.puppet.changes import Foreseen
from localpuppet.rollout.execution.events import Ended, Turn

Problems = Mapping[NodeName, str]
HOLD = 600.0  # seconds that a hold lasts which is not renewed


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a node answered that was asked to take a turn.

    Attributes:
        heard: Whether it answered.
        end: How the turn ended, where it is over already, or the node refuses it.
        problem: Why nothing was heard, one line.
        foreseen: What the turn would change, where the node looked at that and tells it.
        look_again: Whether the node did not take the turn because its look was too long ago.
    """

    heard: bool
    end: Ended | None = None
    problem: str = ""
    foreseen: Foreseen | None = None
    look_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a node told of a turn without being asked.

    Attributes:
        turn: Which; it may have ended.
        end: How it ended, where that is all there is to know; `None` where the node is to be asked.
    """

    turn: Turn
    end: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """What came of bringing a release to nodes.

    Attributes:
        serials: For its assignment on each node that could: newer than the node's own.
        problems: Why nodes could not take it; those that could are left out.
    """

    serials: Mapping[NodeName, int]
    problems: Problems


class Nodes(Protocol):
    """The nodes of a fleet, for one rollout.

    No method raises for what one node does or does not do, nor for a bus that is away: that a node
    is not heard of is an answer.
    """

    async def ready(self, nodes: Collection[NodeName]) -> Problems:
        """Return why nodes could not take part; nothing changes. Those that could are left out."""
        ...

    def durations(self) -> Mapping[NodeName, tuple[float, ...]]:
        """Return how many seconds the last good runs took of nodes that were asked for readiness.

        The newest first, up to five; a node that has none, or does not tell, is left out.
        """
        ...

    async def hold(
        self, nodes: Collection[NodeName], *, epoch: int, seconds: float | None = None
    ) -> Problems:
        """Hold nodes, or go on holding them; return why, where one is not held.

        Args:
            nodes: Which.
            epoch: Of the rollout.
            seconds: How long, if nobody renews it; `None` for the time of a rollout that goes on.
        """
        ...

    async def release(self, nodes: Collection[NodeName], *, epoch: int) -> Problems:
        """Let go of nodes; return why, where one did not say that it is free."""
        ...

    async def stage(self, nodes: Collection[NodeName], *, epoch: int) -> Staging:
        """Have the rollout's release on nodes, and nothing changed; blocks until that is so."""
        ...

    async def start(
        self, turn: Turn, *, epoch: int, serial: int, after: tuple[Awaited, ...], looked: int = 0
    ) -> Asked:
        """Ask a node to take a turn, or how it ended: a node takes a turn once.

        Where the rollout has a release, the node takes that first; or leaves it, with the turn of
        the step after the last group.

        Args:
            turn: Which.
            epoch: The rollout's.
            serial: That of the release's assignment on the node; 0 without a release.
            after: The entries of other nodes that the node is to know of before it runs; one of
                an earlier version does not wait.
            looked: The step of the look whose changes are approved; 0 if none are to be.
        """
        ...

    async def look(self, turn: Turn, *, epoch: int, step: int, after: tuple[Awaited, ...]) -> Asked:
        """Ask a node what a turn would change, or how that ended: nothing changes.

        Args:
            turn: Which.
            epoch: The rollout's.
            step: With which step the node looks; `ends` tells of a turn of that when it is over.
            after: As for `start`.
        """
        ...

    def ends(self) -> AsyncGenerator[News, None]:
        """Yield what nodes tell of turns that may have ended, without an end."""
        ...
