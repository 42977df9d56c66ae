"""A command under a lease ends with the lease, whichever of its guards is killed."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.base.machine.ports import ProcessId
from localpuppet.base.machine.processes import SystemProcesses
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member, read_line
from tests.rigs.node import PATIENCE, REPOSITORY, completed
from tests.rigs.waiting import wait_until

# It starts a process that leaves its process group and session, and prints the ids of both.
COMMAND = """
setsid sh -c 'echo $$; exec sleep 600' &
sleep 600 &
echo $$
wait
"""


def started(process: "subprocess.Popen[str]", count: int = 2) -> list[ProcessId]:
    return [SystemProcesses().identify(int(read_line(process))) for _ in range(count)]


def gone(*processes: ProcessId) -> None:
    alive = SystemProcesses().alive
    wait_until(lambda: not any(map(alive, processes)), lambda: f"some of {processes} still run")


def guard_of(process: "subprocess.Popen[str]") -> ProcessId:
    """Return what a `localpuppet lease` has started: that is its guard, with the rest below it."""
    processes = SystemProcesses()
    return processes.family(processes.identify(process.pid))[1]


@pytest.fixture
def member(fleet: Fleet) -> Member:
    (member,) = fleet.add("a")
    return member


@pytest.mark.parametrize("group", [False, True], ids=["program", "process group"])
@pytest.mark.parametrize("stubborn", ["", "trap '' TERM;"])
def test_a_command_ends_with_its_program(member: Member, stubborn: str, group: bool) -> None:
    held = subprocess.Popen(
        [sys.executable, "-m", "localpuppet", "lease", "db", "--", "sh", "-c", stubborn + COMMAND],
        env=member.node.environment(PYTHONPATH=str(REPOSITORY)),
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    with held:
        family = started(held)
        os.kill(-held.pid if group else held.pid, signal.SIGKILL)
        gone(*family)


def test_a_command_may_read_from_its_terminal(member: Member) -> None:
    main, terminal = pty.openpty()
    words = [sys.executable, "-m", "localpuppet", "lease", "db", "--"]
    # No shell: dash forgets a SIGINT that comes while it starts its next command.
    code = "print('ready'); print('got', input()); open('/dev/tty').read()"
    command = [sys.executable, "-uc", code]
    process = subprocess.Popen(
        ["setsid", "--ctty", *words, *command],
        env=member.node.environment(PYTHONPATH=str(REPOSITORY)),
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert read_line(process) == "ready\n"
        os.write(main, b"hello\n")
        assert read_line(process) == "got hello\n"
        os.write(main, b"\x03")
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
    os.close(main)
    os.close(terminal)


def test_a_command_ends_with_its_guard(member: Member) -> None:
    held = member.node.start("lease", "db", "--", "sh", "-c", COMMAND)
    family = started(held)
    os.kill(guard_of(held).pid, signal.SIGKILL)
    done = member.node.finish(held, code=1)
    assert "the command's watching process was killed, so the command was killed too" in done.err
    assert len(done.err.splitlines()) == 1
    gone(*family)
    assert member.run("lease", "db", "--", "echo", "free").out == "free\n"


def test_a_command_itself_ends_when_all_that_watch_over_it_are_killed(member: Member) -> None:
    held = member.node.start("lease", "db", "--", "sh", "-c", "echo $$; exec sleep 600")
    (command,) = started(held, 1)
    guard = guard_of(held)
    held.send_signal(signal.SIGSTOP)
    os.kill(guard.pid, signal.SIGKILL)
    held.kill()
    gone(command)


def test_a_process_that_a_command_detaches_keeps_running(member: Member) -> None:
    words = ["lease", "db", "--", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!; exit 3"]
    held = member.node.start(*words)
    (left,) = started(held, 1)
    member.node.finish(held, code=3)
    assert SystemProcesses().alive(left)
    os.kill(left.pid, signal.SIGKILL)


def test_signals_and_exit_codes_go_through(member: Member) -> None:
    held = member.node.start(
        "lease", "db", "--", "sh", "-c", "trap 'exit 9' HUP; echo $$; while :; do sleep 0.02; done"
    )
    started(held, 1)
    held.send_signal(signal.SIGHUP)
    member.node.finish(held, code=9)
    assert member.run("lease", "db", "--", "sh", "-c", "kill -KILL $$").code == 128 + signal.SIGKILL
    member.run("lease", "db", "--", "sh", "-c", "exit 0", code=0)


def test_a_signal_that_was_ignored_is_ignored_by_the_command(member: Member) -> None:
    held = member.node.start("lease", "db", "--", "sh", "-c", "grep SigIgn /proc/self/status")
    plain = int(member.node.finish(held).out.split()[1], 16)
    words = [sys.executable, "-m", "localpuppet", "lease", "db", "--"]
    env = member.node.environment(PYTHONPATH=str(REPOSITORY))
    done = completed("nohup", *words, "grep", "SigIgn", "/proc/self/status", env=env)
    assert plain & 1 << (signal.SIGTERM - 1) == 0
    assert int(done.out.split()[1], 16) & 1 << (signal.SIGHUP - 1)


SCRIPT = """
import asyncio, json, os, signal, sys, time
from localpuppet.base.machine.guarded_command import GuardedProcess

guarded = GuardedProcess(["sh", "-c", "echo $$; exec sleep 600"], own_group=True)

async def go():
    await guarded.start(until=time.monotonic() + float(sys.argv[1]), more={})
    if len(sys.argv) > 2:
        sys.stdin.readline()  # the command has begun
        guarded.good_until(time.monotonic() + float(sys.argv[2]))
        os.kill(os.getpid(), signal.SIGSTOP)
    return await guarded.wait()

print(json.dumps(asyncio.run(go())), flush=True)
guarded.close()
"""


@pytest.fixture
def script() -> Callable[..., "subprocess.Popen[str]"]:
    def start(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *words],
            env={"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    return start


def test_a_command_is_killed_at_its_end(script: Callable[..., "subprocess.Popen[str]"]) -> None:
    killed = f"{-signal.SIGKILL}\n"
    for seconds in ("0.5", "8", "64"):  # on a busy machine, a short time ends before it begins
        with script(seconds) as process:
            if (line := read_line(process)) == killed:
                continue
            command = SystemProcesses().identify(int(line))
            assert read_line(process) == killed
            gone(command)
            return
    raise AssertionError("no command began in time")


def test_a_command_is_killed_in_time_while_the_program_hangs(
    script: Callable[..., "subprocess.Popen[str]"],
) -> None:
    with script("600", "0.5") as process:
        (command,) = started(process, 1)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        gone(command)
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: ") T " in stat.read_text(), stat.read_text)
        process.send_signal(signal.SIGCONT)
        assert json.loads(read_line(process)) == -signal.SIGKILL
