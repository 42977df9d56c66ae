"""The contract of `Runner`: over both of the agent's, and over the double that tests use."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion, Runner, RunOrder
from localpuppet.fleet.agent.fork_runner import CommandRunner, ForkRunner
from tests.doubles.agent_ports import FakeRunner
from tests.fleet.make import completed, impossible

ORDER = RunOrder(causes={"count": 1}, text="trigger from a.example.com", noop=True)


class Bench(ABC):
    """A runner whose runs begin and end when the test says so."""

    runner: Runner

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("begun", "gate"):
            os.mkfifo(directory / name)

    async def begun(self) -> str:
        """Wait until a run has started; return the text of its order."""
        return (await asyncio.to_thread((self.directory / "begun").read_text)).strip()

    async def finish(self) -> None:
        """Let the active run end."""
        await asyncio.to_thread((self.directory / "gate").write_text, "")

    @abstractmethod
    def broken(self) -> Runner:
        """Return a runner whose runs cannot be started."""


class ForkBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.runner = ForkRunner(self._work)

    def _work(self, order: RunOrder, begun: Callable[[], None]) -> RunCompletion:
        begun()
        (self.directory / "begun").write_text(order.text)
        (self.directory / "gate").read_text()
        return completed("changed")

    def broken(self) -> Runner:
        def work(_order: RunOrder, _begun: Callable[[], None]) -> RunCompletion:
            raise OSError("there is no Puppet")

        return ForkRunner(work)


class CommandBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.runner = self._command(
            "/bin/sh",
            "-c",
            f'echo "$LOCALPUPPET_CAUSE" > {directory}/begun; cat {directory}/gate',
        )

    def _command(self, *words: str) -> CommandRunner:
        return CommandRunner(
            words,
            {"PATH": os.environ["PATH"]},
            lock=self.directory / "agent/lock",
            timeout=600,
            grace=600,
        )

    def broken(self) -> Runner:
        return self._command("/nonexistent")


class FakeBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._fake = self.runner = FakeRunner()

    async def begun(self) -> str:
        return (await self._fake.orders.get()).text

    async def finish(self) -> None:
        self._fake.ends.put_nowait(completed("changed"))

    def broken(self) -> Runner:
        fake = FakeRunner()
        fake.ends.put_nowait(impossible("there is no Puppet"))
        return fake


@pytest.fixture(params=[ForkBench, CommandBench, FakeBench])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    made: Bench = request.param(tmp_path)
    return made


class TestRunner:
    """What the agent may rely on."""

    async def test_a_run_is_over_when_it_has_ended_and_not_before(self, bench: Bench) -> None:
        run = asyncio.create_task(bench.runner.run(ORDER))
        assert await bench.begun() == ORDER.text
        await asyncio.sleep(0)
        assert not run.done()
        await bench.finish()
        end = await run
        assert end.result is RequestedRunResult.OVER
        assert end.outcome in ("changed", "ended")

    async def test_runs_can_follow_one_after_the_other(self, bench: Bench) -> None:
        for _ in range(3):
            run = asyncio.create_task(bench.runner.run(ORDER))
            await bench.begun()
            await bench.finish()
            assert (await run).result is RequestedRunResult.OVER

    async def test_a_run_that_is_asked_to_end_has_no_good_outcome(self, bench: Bench) -> None:
        run = asyncio.create_task(bench.runner.run(ORDER))
        await bench.begun()
        bench.runner.end()
        end = await run
        assert end.result is RequestedRunResult.OVER
        assert end.outcome not in ("changed", "unchanged", "ended")
        assert end.reason

    async def test_an_end_without_a_run_does_not_end_the_next_run(self, bench: Bench) -> None:
        bench.runner.end()
        run = asyncio.create_task(bench.runner.run(ORDER))
        await bench.begun()
        await bench.finish()
        assert (await run).outcome in ("changed", "ended")
        bench.runner.end()

    async def test_a_run_that_cannot_start_is_impossible_and_has_a_reason(
        self, bench: Bench
    ) -> None:
        end = await bench.broken().run(ORDER)
        assert (end.result, end.outcome) == (RequestedRunResult.IMPOSSIBLE, "")
        assert end.reason

    async def test_the_agent_keeps_working_during_a_run(self, bench: Bench) -> None:
        run = asyncio.create_task(bench.runner.run(ORDER))
        await bench.begun()
        beats = 0
        for _ in range(10):
            await asyncio.sleep(0)
            beats += 1
        assert (beats, run.done()) == (10, False)
        await bench.finish()
        await run
