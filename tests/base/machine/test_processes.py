"""The contract of `Processes`, for the processes of this machine and for the double."""

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.machine.child import signal_group
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import (
    NOBODY,
    Child,
    Output,
    ProcessEnd,
    Processes,
    RunningProcess,
)
from localpuppet.base.machine.processes import SystemProcesses
from tests.doubles.ports import FakeChild, FakeProcesses, Started
from tests.rigs.node import REPOSITORY, completed
from tests.rigs.waiting import wait_until

FLOOD = 300_000
# Each program as a shell script and as a child of the double.
PROGRAMS: dict[str, tuple[str, Callable[[], FakeChild]]] = {
    "exits 0": ("exit 0", FakeChild),
    "exits 3": ("exit 3", lambda: FakeChild(ended=ProcessEnd(code=3, signal=None))),
    "kills itself": ("kill -9 $$", lambda: FakeChild(ended=ProcessEnd(code=None, signal=9))),
    "speaks": (
        "echo one; echo two; exit 2",
        lambda: FakeChild([b"one\n", b"two\n"], ended=ProcessEnd(code=2, signal=None)),
    ),
    "floods": (
        f"head -c {FLOOD} /dev/zero; exec sleep 600",
        lambda: FakeChild([bytes(65536)] * 4 + [bytes(FLOOD - 4 * 65536)], lasts=None),
    ),
    "floods and exits": (f"head -c {FLOOD} /dev/zero", lambda: FakeChild([bytes(FLOOD)])),
    "keeps running": ("echo ready; exec sleep 600", lambda: FakeChild([b"ready\n"], lasts=None)),
    "ignores TERM": (
        "trap '' TERM; echo ready; exec sleep 600",
        lambda: FakeChild([b"ready\n"], lasts=None, dies_of=[signal.SIGKILL]),
    ),
}


class Bench(ABC):
    """Processes, programs for them, and a lock that children inherit."""

    processes: Processes

    def __init__(self, directory: Path) -> None:
        self.lock_file = directory / "lock"
        self.children: list[Child] = []

    @abstractmethod
    def argv(self, program: str) -> list[str]:
        """Return the command of a program."""

    def start(self, program: str) -> Child:
        lock = Flock.take(self.lock_file)
        assert lock is not None
        try:
            child = self.processes.start(
                self.argv(program),
                env={"PATH": os.environ["PATH"]},
                cwd=Path("/"),
                keep=[lock.fd],
                group="localpuppet-test",
            )
        finally:
            os.close(lock.fd)  # now only the child has it
        self.children.append(child)
        return child

    def close(self) -> None:
        for child in self.children:
            child.end(kill=True)
            over(child)
            child.release()


class SystemBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.processes = SystemProcesses()

    def argv(self, program: str) -> list[str]:
        return ["/bin/sh", "-c", PROGRAMS[program][0]] if program in PROGRAMS else [program]


class FakeBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        fakes = FakeProcesses()
        self.processes = fakes

        def begin(started: Started) -> FakeChild:
            return PROGRAMS[started.argv[0]][1]()

        fakes.programs.update(dict.fromkeys(PROGRAMS, begin))

    def argv(self, program: str) -> list[str]:
        return [program]


@pytest.fixture(params=[SystemBench, FakeBench])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made: Bench = request.param(tmp_path)
    yield made
    made.close()


def over(child: Child) -> ProcessEnd:
    """Wait until a child ends, and return its end."""
    ended: ProcessEnd = wait_until(
        lambda: child.wait(0.02), lambda: f"{child.identity} is still running"
    )
    return ended


def ready(child: Child) -> None:
    """Wait until a child reports that it is ready."""
    wait_until(lambda: child.read() == b"ready\n", lambda: f"{child.identity} has written nothing")


class TestProcesses:
    """The behaviour that callers of the port rely on."""

    @pytest.mark.parametrize(
        ("program", "ended"),
        [
            ("exits 0", ProcessEnd(code=0, signal=None)),
            ("exits 3", ProcessEnd(code=3, signal=None)),
            ("kills itself", ProcessEnd(code=None, signal=signal.SIGKILL)),
        ],
    )
    def test_a_child_ends_by_its_exit_code_or_a_signal(
        self, bench: Bench, program: str, ended: ProcessEnd
    ) -> None:
        child = bench.start(program)
        assert over(child) == ended
        child.end(kill=False)
        child.end(kill=True)
        assert child.wait(0) == ended, "a repeated question gets the same answer"

    def test_output_is_read_once_also_at_the_end_unless_it_is_skipped(self, bench: Bench) -> None:
        child = bench.start("speaks")
        assert over(child) == ProcessEnd(code=2, signal=None)
        assert b"".join(iter(child.read, b"")) == b"one\ntwo\n"
        assert child.read() == b""
        skipped = bench.start("speaks")
        over(skipped)
        skipped.skip()
        assert skipped.read() == b""

    def test_large_output_is_read_in_pieces_without_loss(self, bench: Bench) -> None:
        child = bench.start("floods")
        pieces: list[bytes] = []

        def take() -> bool:
            pieces.append(child.read())
            return sum(map(len, pieces)) >= FLOOD

        wait_until(take, lambda: f"only {sum(map(len, pieces))} bytes arrived")
        assert sum(map(len, pieces)) == FLOOD
        assert max(map(len, pieces)) < FLOOD
        assert child.wait(0) is None, "a slow reader does not block a child"

    @pytest.mark.parametrize("kill", [False, True])
    def test_a_child_lives_until_end_sends_a_signal(self, bench: Bench, kill: bool) -> None:
        child = bench.start("keeps running")
        ready(child)
        assert child.wait(0.01) is None
        assert bench.processes.alive(child.identity)
        assert child.identity in bench.processes.family(child.identity)
        child.end(kill=kill)
        number = signal.SIGKILL if kill else signal.SIGTERM
        assert over(child) == ProcessEnd(code=None, signal=number)
        assert not bench.processes.alive(child.identity)
        assert bench.processes.family(child.identity) == []

    def test_a_child_that_ignores_sigterm_runs_until_it_is_killed(self, bench: Bench) -> None:
        child = bench.start("ignores TERM")
        ready(child)
        child.end(kill=False)
        assert child.wait(0.1) is None
        assert bench.processes.alive(child.identity)
        child.end(kill=True)
        assert over(child) == ProcessEnd(code=None, signal=signal.SIGKILL)

    def test_a_child_keeps_its_inherited_lock_until_it_ends(self, bench: Bench) -> None:
        child = bench.start("keeps running")
        ready(child)
        assert Flock.take(bench.lock_file) is None
        child.end(kill=True)
        over(child)
        lock = Flock.take(bench.lock_file)
        assert lock is not None
        lock.release()

    def test_a_missing_program_cannot_be_started(self, bench: Bench) -> None:
        with pytest.raises(StateError, match=r"/nonexistent: cannot be started"):
            bench.start("/nonexistent")
        lock = Flock.take(bench.lock_file)
        assert lock is not None, "no child inherited the lock"
        lock.release()
        with pytest.raises(StateError, match=r"/nonexistent: cannot be started"):
            bench.processes.capture(["/nonexistent"], env={}, timeout=60, limit=1000)

    def test_a_process_is_distinguished_from_all_others(self, bench: Bench) -> None:
        processes, me = bench.processes, bench.processes.me()
        assert processes.me() == me
        assert processes.alive(me)
        assert processes.cancellations() == 0
        for other in (
            NOBODY,
            replace(me, started=me.started + 1),
            replace(me, boot_id="another boot"),
            replace(me, pid=2**22 + 1),
        ):
            assert not processes.alive(other)
            assert processes.family(other) == []

    def test_a_signal_reaches_only_the_identified_process(self, bench: Bench) -> None:
        child = bench.start("keeps running")
        ready(child)
        earlier = replace(child.identity, started=child.identity.started - 1)
        bench.processes.signal([earlier, NOBODY], signal.SIGKILL)
        assert child.wait(0.05) is None
        bench.processes.signal([NOBODY, child.identity], signal.SIGTERM)
        assert over(child) == ProcessEnd(code=None, signal=signal.SIGTERM)
        bench.processes.signal([child.identity], signal.SIGKILL)

    def test_a_process_has_a_name_words_and_a_start_until_it_ends(self, bench: Bench) -> None:
        child = bench.start("ignores TERM")
        ready(child)
        found = bench.processes.look_up(child.identity.pid)
        assert found is not None
        assert found.name
        assert found.words
        child.end(kill=True)
        over(child)
        assert bench.processes.look_up(child.identity.pid) is None

    def test_capture_returns_limited_output_or_nothing_after_a_timeout(self, bench: Bench) -> None:
        def capture(program: str, timeout: float) -> Output | None:
            env = {"PATH": os.environ["PATH"]}
            return bench.processes.capture(
                bench.argv(program), env=env, timeout=timeout, limit=1000
            )

        speaks, floods = capture("speaks", 60), capture("floods and exits", 60)
        assert speaks is not None
        assert (speaks.ended, speaks.stdout) == (ProcessEnd(code=2, signal=None), b"one\ntwo\n")
        assert floods is not None
        assert len(floods.stdout) == 1001, "one byte shows that there was too much"
        assert capture("ignores TERM", 0.1) is None


@pytest.fixture
def system(tmp_path: Path) -> Iterator[SystemBench]:
    made = SystemBench(tmp_path)
    yield made
    made.close()


def run(system: SystemBench, script: str, **env: str) -> str:
    """Run a script as localpuppet runs Puppet, and return its output."""
    with Path(os.devnull).open("rb") as nothing:
        child = system.processes.start(
            ["/bin/sh", "-c", script],
            env={"PATH": os.environ["PATH"], **env},
            cwd=Path("/usr"),
            keep=[nothing.fileno()],
            group="localpuppet-test",
        )
    system.children.append(child)
    assert over(child) == ProcessEnd(code=0, signal=None)
    return b"".join(iter(child.read, b"")).decode()


def test_a_child_has_what_it_is_given_leads_a_group_and_reports_errors(system: SystemBench) -> None:
    script = "pwd; cat; echo $LOCALPUPPET_RUN; env | grep -c HOME=; echo $$ >&2"
    output = run(system, f"{script}; cut -d' ' -f5 /proc/self/stat", LOCALPUPPET_RUN="1")
    *given, pid, group = output.split()
    assert given == ["/usr", "1", "0"]
    assert "HOME" in os.environ
    assert pid == group != str(os.getpgrp())


def test_kill_ends_descendants_that_left_the_process_group(system: SystemBench) -> None:
    script = "setsid sh -c 'echo $$; exec sleep 600' & wait"
    lock = Flock.take(system.lock_file)
    assert lock is not None
    child = system.processes.start(
        ["/bin/sh", "-c", script],
        env={"PATH": os.environ["PATH"]},
        cwd=Path("/"),
        keep=[lock.fd],
        group="localpuppet-test",
    )
    system.children.append(child)
    assert not os.get_inheritable(lock.fd), "other children do not get it"
    pid = int(wait_until(child.read, lambda: "nothing was written"))
    left = SystemProcesses().identify(pid)
    assert system.processes.alive(left)
    assert left in system.processes.family(child.identity)
    child.end(kill=True)
    over(child)
    wait_until(lambda: not system.processes.alive(left), lambda: f"{left} is still running")
    os.close(lock.fd)


def test_a_command_past_its_timeout_leaves_no_process(system: SystemBench, tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    argv, env = ["/bin/sh", "-c", script], {"PATH": os.environ["PATH"]}
    patience = 0.1
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        patience *= 2  # a busy machine may need longer to start it
        assert system.processes.capture(argv, env=env, timeout=patience, limit=1000) is None
    left = SystemProcesses().identify(int((tmp_path / "pid").read_text()))
    wait_until(lambda: not system.processes.alive(left), lambda: f"{left} is still running")


def is_sleep(process: RunningProcess | None) -> bool:
    return process is not None and (process.name, [*process.words]) == (
        "sleep",
        ["/bin/sleep", "60"],
    )


def test_a_process_is_younger_than_its_parent() -> None:
    """A reused pid is recognised by this time, compared with those of files."""
    processes = SystemProcesses()
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        # Popen returns as soon as exec has begun: name and words change a moment later.
        wait_until(lambda: is_sleep(processes.look_up(child.pid)), lambda: "no sleep yet")
        me, started = (processes.look_up(pid) for pid in (os.getpid(), child.pid))
        assert me is not None
        assert started is not None
        assert me.started_at < started.started_at
    finally:
        child.kill()
        child.wait()


def test_a_group_that_has_ended_may_be_signalled() -> None:
    """A command may end by itself just when its time is over."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as child:
        signal_group(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    signal_group(child.pid, signal.SIGKILL)


READ = """
import time
from localpuppet.base.machine.process_table import seconds_since_boot
print(seconds_since_boot() - time.monotonic())
"""


def test_the_seconds_since_boot_include_those_in_which_the_machine_slept() -> None:
    """In a time namespace, the machine slept for an hour."""
    unshare = ("unshare", "--time", "--boottime", "3600", "--fork")
    done = completed(*unshare, sys.executable, "-c", READ, cwd=REPOSITORY)
    assert float(done.out) > 3599.0


# A heap of a thread is 64 MiB of address space, of which little is in use.
PROGRAM = """
import threading, zlib
from localpuppet.base.machine.processes import share_heap
if {shares}:
    share_heap()
stay, there = threading.Event(), threading.Barrier(4)
def use():
    packed = zlib.compressobj()
    there.wait()
    stay.wait()
    packed.flush()
for _ in range(3):
    threading.Thread(target=use).start()
there.wait()
heaps = 0
for line in open("/proc/self/maps"):
    begin, end = (int(part, 16) for part in line.split()[0].split("-"))
    heaps += line.split()[1] == "---p" and 2**25 < end - begin < 2**26
stay.set()
print(heaps)
"""


@pytest.mark.parametrize("shares", [True, False])
def test_threads_have_heaps_of_their_own_unless_they_share(shares: bool) -> None:
    done = completed(sys.executable, "-c", PROGRAM.format(shares=shares), cwd=REPOSITORY)
    assert (done.err, int(done.out) == 0) == ("", shares)
