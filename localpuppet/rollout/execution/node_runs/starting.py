"""Have nodes run: ask them, and wait for each result until the timeout.

    (look -> compare with the approval -> (approved -> look)* -> cleared) -> run -> end

The events go to the caller, which records them; a node run whose changes an operator approved
starts after the approval is in the journal.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.waiting import wait_first
from localpuppet.rollout.execution.changes.comparing import compare
from localpuppet.rollout.execution.events import (
    ChangesPredicted,
    Event,
    NodeResult,
    NodeRun,
    NodeRunEnded,
)
from localpuppet.rollout.execution.node_runs.knowing import awaited_by
from localpuppet.rollout.execution.nodes import NodeRunAnswer, RolloutNodes
from localpuppet.rollout.execution.state import RolloutState

LOOKS = 5  # how often a node compares again because its last comparison is too old
AGAIN = 2.0  # seconds until an unresponsive node is asked again
# Seconds without a report until the node is asked: reports can be lost in an outage.
NEWS = 300.0


@dataclass(slots=True, eq=False)
class NodeRunStarter:
    """The node runs that one process controls."""

    state: RolloutState
    nodes: RolloutNodes
    on_event: Callable[[Event], None]
    _news: dict[NodeRun, asyncio.Event] = field(default_factory=dict, init=False)
    _ends: dict[NodeRun, NodeRunEnded] = field(default_factory=dict, init=False)
    _undecided: dict[NodeRun, tuple[int, asyncio.Event]] = field(default_factory=dict, init=False)

    def look_again(self) -> None:
        """Wake the node runs whose changes are approved by now."""
        for turn, (step, decided) in self._undecided.items():
            if self.state.is_decided(turn, step):
                decided.set()

    async def follow(self) -> None:
        """Receive the nodes' reports, for as long as this is awaited."""
        async for news in self.nodes.ends():
            if news.node_run in self._news:
                if news.end is not None:
                    self._ends[news.node_run] = news.end
                self._news[news.node_run].set()

    async def take(self, turn: NodeRun) -> None:
        """Have a node run, after its changes are approved if the rollout has an approval.

        A node runs only soon after the comparison. If it is too late, it compares again.
        """
        stale = False
        for _ in range(LOOKS):
            if not await self._clear(turn, again=stale):
                return
            end, stale = await self._run(turn)
            if not stale:
                break
        self.on_event(end)

    async def _clear(self, turn: NodeRun, *, again: bool) -> bool:
        """Have a node compare until all its changes are approved; return whether it may run.

        An operator approves an earlier comparison, so the node compares once more after that.
        """
        while again or self.state.looks(turn):
            again = False
            step, decided = self.state.look_step(turn), asyncio.Event()
            seen = await self._look(turn, step)
            self._undecided[turn] = step, decided
            self.on_event(seen)
            if isinstance(seen, NodeRunEnded):
                return False
            await decided.wait()
        return True

    async def _run(self, turn: NodeRun) -> tuple[NodeRunEnded, bool]:
        """Return the result of a run, and whether the node refused because of an old comparison."""
        state = self.state

        async def start() -> NodeRunAnswer:
            return await self.nodes.start(
                turn,
                epoch=state.epoch,
                serial=state.serials.get(turn.node, 0),
                after=awaited_by(state, turn),
                looked=state.looked.get(turn, 0),
            )

        end, asked = await self._ask(turn, start)
        return replace(end, node_run=turn), asked is not None and asked.look_again

    async def _look(self, turn: NodeRun, step: int) -> ChangesPredicted | NodeRunEnded:
        """Return the comparison of a node's changes with the approval, or why it failed."""

        async def look() -> NodeRunAnswer:
            return await self.nodes.look(
                turn, epoch=self.state.epoch, step=step, after=awaited_by(self.state, turn)
            )

        end, asked = await self._ask(NodeRun(step, turn.node), look)
        if end.result is not NodeResult.SUCCEEDED:
            return replace(end, node_run=turn, reason=f"before its run, with noop: {end.reason}")
        if self.state.began.approval is None or asked is None or asked.predicted_changes is None:
            return NodeRunEnded(
                node_run=turn,
                result=NodeResult.FAILED,
                reason="did not report what it would change",
            )
        if not asked.predicted_changes.whole:
            reason = (
                f"would change {asked.predicted_changes.total} properties: too many to be approved"
            )
            return NodeRunEnded(node_run=turn, result=NodeResult.FAILED, reason=reason)
        difference = compare(self.state.may_change(turn), asked.predicted_changes)
        return ChangesPredicted(node_run=turn, difference=difference)

    async def _ask(
        self, turn: NodeRun, ask: Callable[[], Awaitable[NodeRunAnswer]]
    ) -> tuple[NodeRunEnded, NodeRunAnswer | None]:
        """Ask a node repeatedly until it reports a result or the timeout is over.

        Most nodes are asked once: their own report has the complete result.
        """
        seconds = self.state.began.options.timeout
        news = self._news[turn] = asyncio.Event()
        problem = ""
        try:
            async with asyncio.timeout(seconds):
                while turn not in self._ends:
                    news.clear()
                    asked = await ask()
                    if asked.end is not None:
                        return asked.end, asked
                    problem = asked.problem
                    await wait_first(news, seconds=AGAIN if problem else NEWS)
                return self._ends.pop(turn), None
        except TimeoutError:
            reason = f"did not report within {show_duration(seconds)} how its run ended"
            if problem:
                reason += f": {problem}"
            return NodeRunEnded(node_run=turn, result=NodeResult.UNRESPONSIVE, reason=reason), None
        finally:
            del self._news[turn]
