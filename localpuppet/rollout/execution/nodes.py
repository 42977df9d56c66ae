"""The port through which a rollout reaches its nodes, and the values that cross it.

Implementation: `fleet.FleetNodes`.
"""

from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.awaited import Awaited
from localpuppet.node.puppet.changes import Foreseen
from localpuppet.rollout.execution.events import Ended, Turn

Problems = Mapping[NodeName, str]
HOLD = 600.0  # seconds until a hold expires that is not renewed


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The answer of a node that was asked to run.

    Attributes:
        heard: Whether the node answered.
        end: The result, if the run is over or the node refused it.
        problem: Why there is no answer, one line.
        foreseen: The changes that the node reports, if it compared.
        look_again: Whether the node did not run because its last comparison is too old.
    """

    heard: bool
    end: Ended | None = None
    problem: str = ""
    foreseen: Foreseen | None = None
    look_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """A report that a node sent without a request.

    Attributes:
        turn: The node run; it may have ended.
        end: The complete result; `None` if the node has to be asked for it.
    """

    turn: Turn
    end: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The result of staging a release on nodes.

    Attributes:
        serials: Node → the serial of its assignment, newer than the node's own.
        problems: Node → why it cannot take the release.
    """

    serials: Mapping[NodeName, int]
    problems: Problems


class Nodes(Protocol):
    """The nodes of a fleet, for one rollout.

    No method raises because of a single node or an unreachable bus: an unresponsive node is a
    result.
    """

    async def ready(self, nodes: Collection[NodeName]) -> Problems:
        """Return the nodes that cannot take part, each with the reason; nothing changes."""
        ...

    def durations(self) -> Mapping[NodeName, tuple[float, ...]]:
        """Return the durations of the last good runs, in seconds, of nodes that `ready` asked.

        The newest first, up to five. Nodes without good runs or reports are left out.
        """
        ...

    async def hold(
        self, nodes: Collection[NodeName], *, epoch: int, seconds: float | None = None
    ) -> Problems:
        """Put nodes on hold for a number of seconds (`None`: `HOLD`), or renew their holds.

        Returns:
            The nodes that are not on hold, with the reason.
        """
        ...

    async def release(self, nodes: Collection[NodeName], *, epoch: int) -> Problems:
        """Release nodes; return those that did not confirm it, with the reason."""
        ...

    async def stage(self, nodes: Collection[NodeName], *, epoch: int) -> Staging:
        """Stage the rollout's release on nodes without applying it."""
        ...

    async def start(
        self, turn: Turn, *, epoch: int, serial: int, after: tuple[Awaited, ...], looked: int = 0
    ) -> Asked:
        """Ask a node to run, or for the result of that run: a node runs once for each step.

        If the rollout has a release, the node first switches to it; in the step after the last
        group it first switches back.

        Args:
            turn: The node run.
            epoch: The rollout's epoch.
            serial: The serial of the release's assignment on the node; 0 without a release.
            after: Inventory entries of other nodes to wait for before running. Nodes of earlier
                versions do not wait.
            looked: The step of the comparison whose changes are approved; 0 without approvals.
        """
        ...

    async def look(self, turn: Turn, *, epoch: int, step: int, after: tuple[Awaited, ...]) -> Asked:
        """Ask a node what a run would change, with noop, or for the result of that question.

        `step` identifies the comparison; `ends` reports it like a run.
        """
        ...

    def ends(self) -> AsyncGenerator[News, None]:
        """Yield the nodes' reports of runs that may have ended, without an end."""
        ...
