"""A worker of hooks that looks once; a test kills it.

`python -m tests.web.hooks.one_hook ROOT SECONDS` continues where an earlier one was killed. Its
nodes are the files `begun`, a line for each rollout, and `staged`, a line for each request.
"""

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.node.app import NodeApp
from localpuppet.web.dashboard.actions import ActionOutcome, ActionResult, NodeVerdict
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.rollout_actions import RolloutStart
from localpuppet.web.hooks.hook_settings import hook_settings
from localpuppet.web.hooks.hook_worker import HookActor, HookWorker, TagSearch
from tests.doubles.ports import FakeClock, FakeLog

ROLLOUT = RolloutId("20261120T140200Z-0001")


class _Actor:
    """Brings releases to files."""

    name, machine = "choria=alice", "ctl"

    def __init__(self, directory: Path) -> None:
        self._begun, self._staged = directory / "begun", directory / "staged"

    def begun(self, start: RolloutStart, since: float) -> RolloutId | None:
        return ROLLOUT if self._begun.exists() else None

    async def start(self, start: RolloutStart) -> RolloutId:
        with self._begun.open("a") as file:
            file.write(f"{start.fields['release']}\n")
        return ROLLOUT

    async def stage(self, release: ReleasePath, nodes: Sequence[NodeName]) -> ActionOutcome:
        with self._staged.open("a") as file:
            file.write(f"{release}\n")
        results = [ActionResult(node=node, verdict=NodeVerdict.ACCEPTED) for node in nodes]
        return ActionOutcome.of_results(results)


async def main(root: Path, seconds: float) -> None:
    # One thread: strace counts the calls of each.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    node, clock, log = NodeApp(str(root)), FakeClock(), FakeLog()
    clock.advance(120.0)
    memory = DashboardStore(root / "web" / "fleet.sqlite", now=lambda: clock.now().timestamp())
    memory.begin()

    async def names(_: str) -> frozenset[str]:
        return frozenset({"web01"})

    actor: Any = _Actor(root)
    worker = HookWorker(
        node.section(hook_settings),
        TagSearch(node.supply, node.git()).look,
        HookActor(actor, names, memory, clock, log).act,
        state=node.settings.state,
        metrics=root / "metrics.prom",
        clock=clock,
        log=log,
    )
    clock.advance(seconds)
    worker.deliver("web")
    await worker.step("web")
    memory.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
