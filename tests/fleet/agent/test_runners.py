"""Runs in a child: what it keeps of its parent, and what its parent makes of its end."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.base.machine.service_manager import ServiceManager
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion, RunOrder
from localpuppet.fleet.agent.fork_runner import CommandRunner, ForkRunner
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
        (
            dies_after_it_began,
            completed("interrupted", reason="its supervisor died (signal 9)"),
        ),
        (
            dies_before_it_began,
            busy("its supervisor died before it began (signal 9)"),
        ),
        (
            has_a_bug,
            impossible("its supervisor died before it began (exit code 70)"),
        ),
        (
            exits,
            completed("interrupted", reason="its supervisor died (exit code 3)"),
        ),
        (
            says_too_much,
            completed("interrupted", reason="its supervisor died (exit code 0)"),
        ),
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


async def test_a_child_that_gets_no_thread_is_not_called_a_bug(
    capfd: pytest.CaptureFixture[str],
) -> None:
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

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: None)
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert await ForkRunner(look).run(ORDER) == OVER
    found = json.loads((tmp_path / "found").read_text())
    assert len(found["files"]) <= 1, "the listing's own"
    assert (found["term"], found["inherited"]) == (True, False)


async def test_a_run_is_asked_to_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "here")

    def waits(_order: RunOrder, begun: Begun) -> RunCompletion:
        begun()
        (tmp_path / "here").write_bytes(b"")
        signal.pause()
        return OVER

    runner = ForkRunner(waits)
    run = asyncio.create_task(runner.run(ORDER))
    await asyncio.to_thread((tmp_path / "here").read_bytes)
    runner.end()
    assert await run == completed("interrupted", reason="its supervisor died (signal 15)")


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
        (
            ("true",),
            completed("ended", reason="exit code 0"),
        ),
        (
            ("sh", "-c", "exit 3"),
            completed("failed", reason="exit code 3"),
        ),
        (
            ("sh", "-c", "kill -9 $$"),
            completed("failed", reason="exit code -9"),
        ),
        (
            ("/nonexistent",),
            impossible("/nonexistent: No such file or directory"),
        ),
    ],
)
async def test_the_result_of_a_command_is_returned(
    tmp_path: Path, words: tuple[str, ...], end: RunCompletion
) -> None:
    runner = command(tmp_path, *words)
    assert await runner.run(ORDER) == end
    assert await runner.run(ORDER) == end, "the lock is free again"
    runner.end()  # no run is active


async def test_a_command_learns_its_cause(tmp_path: Path) -> None:
    runner = command(tmp_path, "sh", "-c", f'printf %s "$LOCALPUPPET_CAUSE" > {tmp_path}/cause')
    await runner.run(ORDER)
    assert (tmp_path / "cause").read_text() == "trigger from a.example.com"


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_command_that_does_not_end_is_ended(tmp_path: Path, stubborn: bool) -> None:
    """With all that it started: TERM, and KILL for what does not listen."""
    trap = "trap '' TERM; " if stubborn else ""
    script = f"{trap}sleep 600 & echo $! > {tmp_path}/pid; wait"
    runner = command(tmp_path, "sh", "-c", script, timeout=0.3, grace=0.3)
    end = await runner.run(ORDER)
    assert end == completed("timed_out", reason="did not end within 0.3 s")


async def test_the_command_of_a_killed_agent_keeps_the_next_one_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    script = f"touch {tmp_path}/here; cat {tmp_path}/gate"
    first, second = command(tmp_path, "sh", "-c", script), command(tmp_path, "true")
    run = asyncio.create_task(first.run(ORDER))
    while not (tmp_path / "here").exists():
        await asyncio.sleep(0.01)
    busy = await second.run(ORDER)
    assert (busy.result, busy.reason) == (
        RequestedRunResult.BUSY,
        "the command of an earlier agent is still running",
    )
    await asyncio.to_thread((tmp_path / "gate").write_bytes, b"")
    assert (await run).outcome == "ended"
    assert (await second.run(ORDER)).outcome == "ended"


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
    assert [(await runner.run(ORDER)).result for runner in runners] == [
        RequestedRunResult.OVER,
        RequestedRunResult.OVER,
    ]


ENDS_WITH_AN_ERROR = """
import asyncio, sys
from pathlib import Path
from localpuppet.fleet.agent.fork_runner import CommandRunner
from localpuppet.fleet.agent.agent import RunOrder
directory = Path(sys.argv[1])
runner = CommandRunner(
    tuple(sys.argv[2:]), {}, lock=directory / "agent" / "lock", timeout=60, grace=60
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
    assert (await following.run(ORDER)).result is RequestedRunResult.BUSY
    await asyncio.to_thread((tmp_path / "gate").write_bytes, b"")
    while (await following.run(ORDER)).result is RequestedRunResult.BUSY:
        await asyncio.sleep(0.01)
    assert (tmp_path / "done").exists()


def test_the_service_manager_is_notified(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        environment = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "3600000000",
            "WATCHDOG_PID": str(os.getpid()),
        }
        found = ServiceManager.from_environment(environment)
        assert environment == {}, "no child can notify in the agent's name"
        found.ready("waits")
        found.alive()
        found.alive()  # not more often than it is asked for
        found.stopping()
        told = [manager.recv(100) for _ in range(3)]
        assert told == [b"READY=1\nSTATUS=waits", b"WATCHDOG=1", b"STOPPING=1"]
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
    found.ready("no manager listens any more: no error")


def test_a_service_manager_that_missed_a_keep_alive_gets_the_next(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    found = ServiceManager.from_environment(
        {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid())}
    )
    found.alive()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE)
        found.alive()
        assert manager.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nonexistent"},
        {"WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "@abstract-and-not-there", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"},
    ],
)
def test_without_a_service_manager_nothing_happens(environment: dict[str, str]) -> None:
    found = ServiceManager.from_environment(environment)
    found.ready("")
    found.alive()
    found.stopping()
