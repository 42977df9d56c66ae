"""Runs in a child: the contract of `Runner`, and what a parent makes of its child's end."""

import asyncio
import json
import os
import resource
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion, Runner, RunOrder
from localpuppet.fleet.agent.fork_runner import CommandRunner, ForkRunner
from tests.doubles.agent_ports import FakeRunner
from tests.fleet.make import busy, completed, impossible
from tests.rigs.waiting import PATIENCE

ORDER = RunOrder(causes={"count": 1}, text="trigger from a.example.com")
OVER = completed("changed", run="1")
Begun = Callable[[], None]


def fine(_order: RunOrder, begun: Begun) -> RunCompletion:
    begun()
    return OVER


def dies_after_it_began(_order: RunOrder, begun: Begun) -> RunCompletion:
    begun()
    os.kill(os.getpid(), signal.SIGKILL)
    return OVER


def dies_before_it_began(_order: RunOrder, _begun: Begun) -> RunCompletion:
    os.kill(os.getpid(), signal.SIGKILL)
    return OVER


def has_a_bug(_order: RunOrder, _begun: Begun) -> RunCompletion:
    raise RuntimeError("a bug")


def exits(_order: RunOrder, begun: Begun) -> RunCompletion:
    begun()
    os._exit(3)


def says_too_much(_order: RunOrder, begun: Begun) -> RunCompletion:
    begun()
    return completed(reason="x" * 100_000)


@pytest.mark.parametrize(
    ("work", "end"),
    [
        (fine, OVER),
        (dies_after_it_began, completed("interrupted", reason="its supervisor died (signal 9)")),
        (dies_before_it_began, busy("its supervisor died before it began (signal 9)")),
        (has_a_bug, impossible("its supervisor died before it began (exit code 70)")),
        (exits, completed("interrupted", reason="its supervisor died (exit code 3)")),
        (says_too_much, completed("interrupted", reason="its supervisor died (exit code 0)")),
    ],
)
async def test_the_result_of_a_child_is_returned(
    work: Callable[[RunOrder, Begun], RunCompletion], end: RunCompletion
) -> None:
    runner = ForkRunner(work)
    assert await runner.run(ORDER) == end
    assert await runner.run(ORDER) == end, "and again"
    runner.end()  # no run is active


def gets_no_thread(_order: RunOrder, _begun: Begun) -> RunCompletion:
    raise RuntimeError("can't start new thread")


async def test_a_child_without_a_thread_is_no_bug(capfd: pytest.CaptureFixture[str]) -> None:
    assert (await ForkRunner(gets_no_thread).run(ORDER)).result is RequestedRunResult.IMPOSSIBLE
    assert capfd.readouterr().err.startswith("localpuppet: cannot start a thread: ")


async def test_a_child_inherits_no_descriptor_and_no_signal_handler(tmp_path: Path) -> None:
    """Only the three standard descriptors, no handler, no wake-up descriptor; nor has Puppet."""

    def look(_order: RunOrder, begun: Begun) -> RunCompletion:
        begun()
        found = {
            "files": [file.name for file in Path("/proc/self/fd").iterdir() if int(file.name) > 3],
            "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            "inherited": os.get_inheritable(3),
        }
        (tmp_path / "found").write_text(json.dumps(found))
        return OVER

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert await ForkRunner(look).run(ORDER) == OVER
    found = json.loads((tmp_path / "found").read_text())
    assert len(found["files"]) <= 1, "the listing's own"
    assert (found["term"], found["inherited"]) == (True, False)


def command(
    directory: Path, *words: str, timeout: float = PATIENCE, grace: float = 60
) -> CommandRunner:
    return CommandRunner(
        words,
        {"PATH": os.environ["PATH"]},
        lock=directory / "agent" / "lock",
        timeout=timeout,
        grace=grace,
    )


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (("true",), completed("ended", reason="exit code 0")),
        (("sh", "-c", "exit 3"), completed("failed", reason="exit code 3")),
        (("sh", "-c", "kill -9 $$"), completed("failed", reason="exit code -9")),
        (("/nonexistent",), impossible("/nonexistent: No such file or directory")),
    ],
)
async def test_the_result_of_a_command_is_returned(
    tmp_path: Path, words: tuple[str, ...], end: RunCompletion
) -> None:
    runner = command(tmp_path, *words)
    assert await runner.run(ORDER) == end
    assert await runner.run(ORDER) == end, "the lock is free again"
    runner.end()  # no run is active


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_command_that_does_not_end_is_ended(tmp_path: Path, stubborn: bool) -> None:
    """With all that it started: TERM, and KILL for what does not listen."""
    trap = "trap '' TERM; " if stubborn else ""
    script = f"{trap}sleep 600 & echo $! > {tmp_path}/pid; wait"
    end = await command(tmp_path, "sh", "-c", script, timeout=0.3, grace=0.3).run(ORDER)
    assert end == completed("timed_out", reason="did not end within 0.3 s")


async def test_too_few_descriptors_postpone_a_run(tmp_path: Path) -> None:
    runners = (ForkRunner(fine), command(tmp_path, "true"))
    (tmp_path / "agent").mkdir()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open("/dev/null", os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 1, before[1]))
    try:
        ends = [await runner.run(ORDER) for runner in runners]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [(end.result, end.reason) for end in ends] == [
        (RequestedRunResult.BUSY, "a supervisor: Too many open files"),
        (RequestedRunResult.BUSY, "true: Too many open files"),
    ]
    expected = [RequestedRunResult.OVER, RequestedRunResult.OVER]
    assert [(await runner.run(ORDER)).result for runner in runners] == expected


ENDS_WITH_AN_ERROR = """
import asyncio, sys
from pathlib import Path
from localpuppet.fleet.agent.fork_runner import CommandRunner
from localpuppet.fleet.agent.agent import RunOrder
directory = Path(sys.argv[1])
runner = CommandRunner(
    tuple(sys.argv[2:]), {}, lock=directory / "agent" / "lock", timeout=300, grace=300
)

async def agent():
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run(RunOrder(causes={}, text="")))
        while not (directory / "here").exists():
            await asyncio.sleep(0.01)
        raise RuntimeError("the disk is full")

asyncio.run(agent())
"""


async def test_the_command_of_a_failed_agent_keeps_running(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    script = f"touch {tmp_path}/here; cat {tmp_path}/gate; touch {tmp_path}/done"
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ENDS_WITH_AN_ERROR, str(tmp_path), "/bin/sh", "-c", script),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await agent.wait() == 1
    following = command(tmp_path, "true")
    assert await following.run(ORDER) == busy("the command of an earlier agent is still running")
    await asyncio.to_thread((tmp_path / "gate").write_bytes, b"")
    while (await following.run(ORDER)).result is RequestedRunResult.BUSY:
        await asyncio.sleep(0.01)
    assert (tmp_path / "done").exists()


NOOP = RunOrder(causes={"count": 1}, text="trigger from a.example.com", noop=True)


class RunnerStage(ABC):
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
        await asyncio.to_thread((self.directory / "gate").write_text, "")

    @abstractmethod
    def broken(self) -> Runner:
        """Return a runner whose runs cannot be started."""


class ForkStage(RunnerStage):
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


class CommandStage(RunnerStage):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.runner = self._command(
            "/bin/sh", "-c", f'echo "$LOCALPUPPET_CAUSE" > {directory}/begun; cat {directory}/gate'
        )

    def _command(self, *words: str) -> CommandRunner:
        return command(self.directory, *words, timeout=600, grace=600)

    def broken(self) -> Runner:
        return self._command("/nonexistent")


class FakeStage(RunnerStage):
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


@pytest.fixture(params=[ForkStage, CommandStage, FakeStage])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> RunnerStage:
    made: RunnerStage = request.param(tmp_path)
    return made


class TestRunner:
    """What the agent may rely on."""

    async def test_a_run_is_over_when_it_has_ended_and_not_before(self, stage: RunnerStage) -> None:
        run = asyncio.create_task(stage.runner.run(NOOP))
        assert await stage.begun() == NOOP.text
        await asyncio.sleep(0)
        assert not run.done()
        await stage.finish()
        end = await run
        assert end.result is RequestedRunResult.OVER
        assert end.outcome in ("changed", "ended")

    async def test_a_run_that_is_asked_to_end_has_no_good_outcome(self, stage: RunnerStage) -> None:
        run = asyncio.create_task(stage.runner.run(NOOP))
        await stage.begun()
        stage.runner.end()
        end = await run
        assert end.result is RequestedRunResult.OVER
        assert end.outcome not in ("changed", "unchanged", "ended")
        assert end.reason

    async def test_an_end_without_a_run_does_not_end_the_next_run(self, stage: RunnerStage) -> None:
        stage.runner.end()
        run = asyncio.create_task(stage.runner.run(NOOP))
        await stage.begun()
        await stage.finish()
        assert (await run).outcome in ("changed", "ended")
        stage.runner.end()

    async def test_a_run_that_cannot_start_has_a_reason(self, stage: RunnerStage) -> None:
        end = await stage.broken().run(NOOP)
        assert (end.result, end.outcome) == (RequestedRunResult.IMPOSSIBLE, "")
        assert end.reason
