"""Two orchestrators whose nodes overlap, in simulated time: each node has one of them, or none."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.rollout.deliveries import NodeRunAnswer, Problems
from localpuppet.rollout.events import NodeRun, RolloutBegan, RolloutEnding
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import Notes, SimulatedNodes, began, new, node

Holders = dict[NodeName, RolloutId]


@dataclass
class SharedNodes(SimulatedNodes):
    """Nodes that another rollout controller may hold: the first one gets a node, as on real nodes.

    Attributes:
        rollout: The rollout that asks here.
        holders: The rollout that holds each node; shared by all controllers.
        pause: Seconds that a node takes to answer.
    """

    rollout: RolloutId = field(default_factory=lambda: RolloutId("20261122T110000Z-0123"))
    holders: Holders = field(default_factory=dict)
    pause: float = 1.0

    async def ready(self, nodes: Collection[NodeName]) -> Problems:
        await asyncio.sleep(self.pause)
        return self._others(nodes)

    async def hold(
        self, nodes: Collection[NodeName], *, epoch: int, seconds: float | None = None
    ) -> Problems:
        problems: dict[NodeName, str] = {}
        for one in nodes:
            await asyncio.sleep(self.pause)
            problems |= self._others([one])
            if one not in problems:
                self.holders[one] = self.rollout
        await super().hold([one for one in nodes if one not in problems], epoch=epoch)
        return problems

    async def release(self, nodes: Collection[NodeName], *, epoch: int) -> Problems:
        for one in nodes:
            if self.holders.get(one) == self.rollout:
                del self.holders[one]
        return await super().release(nodes, epoch=epoch)

    async def start(self, turn: NodeRun, **asked: Any) -> NodeRunAnswer:
        assert self.holders[turn.node] == self.rollout, (
            "a node runs only for the rollout that holds it"
        )
        return await super().start(turn, **asked)

    def _others(self, nodes: Collection[NodeName]) -> dict[NodeName, str]:
        theirs = {one: self.holders.get(one, self.rollout) for one in nodes}
        return {one: f"on hold: {who}" for one, who in theirs.items() if who != self.rollout}


def orchestrator(
    number: int, first: RolloutBegan, holders: Holders
) -> tuple[RolloutBegan, SharedNodes]:
    rollout = RolloutId(f"20261122T110000Z-{number:04}")
    return replace(first, id=rollout), SharedNodes(rollout=rollout, holders=holders)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("later", [0.0, 0.5, 1.5, 3.2, 20.0])
def test_a_node_runs_for_only_one_rollout_at_a_time(later: float, *, skip: bool) -> None:
    """Both rollouts need nodes 3 and 4; a rollout that does not get all of its nodes takes none."""

    async def work() -> None:
        holders: Holders = {}
        one, first = orchestrator(1, began([1, 2, 3, 4], skip_unready=skip), holders)
        two, second = orchestrator(2, began([4, 3], [5], skip_unready=skip), holders)
        doing = asyncio.create_task(new(one, first, Notes()).run(resume=False))
        await asyncio.sleep(later)
        over = await new(two, second, Notes()).run(resume=False)
        endings = [(await doing).ending, over.ending]
        assert holders == {}, "both release their holds"
        shared = {node(3), node(4)}
        ran = [{turn.node for turn in nodes.ran} & shared for nodes in (first, second)]
        if later < 10:
            assert not ran[0] & ran[1], "a node that one holds does not run for the other"
            assert skip or RolloutEnding.NOT_READY in endings
        else:
            assert endings == [RolloutEnding.DONE, RolloutEnding.DONE]
        for ending, nodes in zip(endings, (first, second), strict=True):
            assert bool(nodes.ran) == (ending is RolloutEnding.DONE)

    run_simulated(work())


def test_a_refused_rollout_can_run_when_the_other_has_ended() -> None:
    async def work() -> None:
        holders: Holders = {}
        one, first = orchestrator(1, began([1, 2]), holders)
        two, second = orchestrator(2, began([2, 3]), holders)
        doing = asyncio.create_task(new(one, first, Notes()).run(resume=False))
        await asyncio.sleep(2.5)
        over = await new(two, second, Notes()).run(resume=False)
        assert over.ending is RolloutEnding.NOT_READY
        assert over.reason == f"{node(2)}: on hold: {one.id}"
        assert (await doing).ending is RolloutEnding.DONE
        assert (await new(two, second, Notes()).run(resume=False)).ending is RolloutEnding.DONE
        assert [turn.node for turn in second.ran] == [node(2), node(3)]

    run_simulated(work())
