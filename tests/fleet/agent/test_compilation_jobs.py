"""Catalogs that a node compiles for a caller: one at a time, returned to a repeated request."""

import asyncio

import pytest

from localpuppet.base.errors import BusyError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.fleet.agent.agent import RunCompletion
from localpuppet.fleet.agent.rollout_steps import WORKING, CompilationJobs
from localpuppet.fleet.requests.arguments import Compile
from tests.doubles.ports import FakeLog
from tests.fleet.make import completed, impossible


class FakeCompiling:
    """Compilations that end when the test says."""

    def __init__(self) -> None:
        self.on = 0
        self.ends: asyncio.Queue[RunCompletion] = asyncio.Queue()

    async def run(self, order: Compile) -> RunCompletion:
        self.on += 1
        assert self.on == 1, "never two at once"
        try:
            return await self.ends.get()
        finally:
            self.on -= 1


def compile_of(number: int) -> Compile:
    return Compile(release=ReleasePath(f"app/tags/r{number}"))


async def test_jobs_are_compiled_one_after_the_other_and_return_their_results() -> None:
    runner = FakeCompiling()
    candidates = CompilationJobs(runner, log=FakeLog())
    for number in range(2):
        assert candidates.ask("choria=alice", compile_of(number)) == WORKING
    with pytest.raises(BusyError, match="2 compilations of choria=alice wait on this node"):
        candidates.ask("choria=alice", compile_of(2))
    assert candidates.ask("choria=bob", compile_of(0)) == WORKING
    runner.ends.put_nowait(completed(details={"added": ["x"]}))
    runner.ends.put_nowait(impossible("does not compile"))
    runner.ends.put_nowait(impossible())
    for _ in range(20):
        await asyncio.sleep(0)
    assert candidates.ask("choria=alice", compile_of(0)) == {"state": "done", "added": ["x"]}
    assert candidates.ask("choria=alice", compile_of(1)) == "does not compile"
    assert candidates.ask("choria=bob", compile_of(0)) == "the catalog was not compiled"
