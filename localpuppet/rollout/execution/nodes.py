"""The port through which a rollout reaches its nodes, and the values that cross it.

Implementation: `fleet.FleetNodes`.
"""

from collections.abc import AsyncGenerator, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.outbox import AwaitedEntry
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout.execution.events import LastRunsReported, NodeRun, NodeRunEnded

if TYPE_CHECKING:
    from localpuppet.fleet.requests.client import NodeAnswer


Problems = Mapping[NodeName, str]
HOLD = 600.0  # seconds until a hold expires that is not renewed


class NodeRunAnswer(Value):
    """The answer of a node that was asked to run.

    Attributes:
        end: The result, if the run is over or the node refused it.
        problem: Why there is no answer, or no comparison, one line; otherwise empty.
        predicted_changes: The changes that the node reports, if it compared.
        look_again: Whether the node did not run because its last comparison is too old.
    """

    end: NodeRunEnded | None = None
    problem: str = ""
    predicted_changes: PredictedChanges | None = None
    look_again: bool = False


class NodeRunReport(Value):
    """A report that a node sent without a request.

    Attributes:
        node_run: The node run; it may have ended.
        end: The complete result; `None` if the node has to be asked for it.
    """

    node_run: NodeRun
    end: NodeRunEnded | None = None


class StagingResult(Value):
    """The result of staging a release on nodes.

    Attributes:
        serials: Node → the serial of its assignment, newer than the node's own.
        problems: Node → why it cannot take the release.
    """

    serials: Mapping[NodeName, int]
    problems: Problems


class RolloutNodes(Protocol):
    """The nodes of a fleet, for one rollout.

    No method raises because of a single node or an unreachable bus: an unresponsive node is a
    result.
    """

    async def ready(self, nodes: Collection[NodeName]) -> Problems:
        """Return the nodes that cannot take part, each with the reason; nothing changes."""

    def last_runs(self) -> LastRunsReported:
        """Return what the nodes that `ready` asked report of their last runs.

        Up to five durations of a node. Nodes without good runs or reports are left out.
        """

    async def hold(
        self, nodes: Collection[NodeName], *, epoch: int, seconds: float | None = None
    ) -> Problems:
        """Put nodes on hold for a number of seconds (`None`: `HOLD`), or renew their holds.

        Returns:
            The nodes that are not on hold, with the reason.
        """

    async def release(self, nodes: Collection[NodeName], *, epoch: int) -> Problems:
        """Release nodes; return those that did not confirm it, with the reason."""

    async def stage(self, nodes: Collection[NodeName], *, epoch: int) -> StagingResult:
        """Stage the rollout's release on nodes without applying it."""

    async def start(
        self,
        turn: NodeRun,
        *,
        epoch: int,
        serial: int,
        after: tuple[AwaitedEntry, ...],
        looked: int = 0,
    ) -> NodeRunAnswer:
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

    async def look(
        self, turn: NodeRun, *, epoch: int, step: int, after: tuple[AwaitedEntry, ...]
    ) -> NodeRunAnswer:
        """Ask a node what a run would change, with noop, or for the result of that question.

        `step` identifies the comparison; `ends` reports it like a run.
        """

    def ends(self) -> AsyncGenerator[NodeRunReport, None]:
        """Yield the nodes' reports of runs that may have ended, without an end."""


PATIENCE = 20.0  # seconds for a reply
MAX_REASON = 300


def line(value: Json) -> str:
    """Return a text of a node as one line of up to `MAX_REASON`; empty if it is not a text."""
    return one_line(value if isinstance(value, str) else "")[:MAX_REASON]


def problem_of(answer: "NodeAnswer") -> str:
    """Return why a request failed, one line."""
    if answer.reply is None:
        return answer.problem
    return line(answer.reply.error or "")
