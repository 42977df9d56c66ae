"""Programs with limits: localpuppet keeps output up to a limit and ends a program beyond it."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.machine.isolation import Bounds, ProgramResult, run
from localpuppet.base.machine.processes import SystemProcesses
from tests.rigs.waiting import wait_until

MEGABYTE = 1024 * 1024
WIDE = Bounds(seconds=600, output=MEGABYTE, errors=1000, memory=1024 * MEGABYTE)


def shell(script: str, *arguments: str, bounds: Bounds = WIDE, stdin: bytes = b"") -> ProgramResult:
    argv = ["/bin/sh", "-c", script, *arguments]
    return run(argv, env={"PATH": os.environ["PATH"]}, cwd=Path("/"), bounds=bounds, stdin=stdin)


def test_a_program_reads_its_input_and_its_output_is_separate_from_its_errors() -> None:
    text = b"x" * (MEGABYTE - 2)
    done = shell("cat; pwd; echo sorry >&2; exit 3", stdin=text)
    assert (done.code, done.flooded, done.in_time) == (3, False, True)
    assert (done.out, done.err) == (text + b"/\n", b"sorry\n")


def test_endless_output_is_kept_only_up_to_its_limit() -> None:
    done = shell("exec yes")
    assert done.flooded
    assert len(done.out) == WIDE.output + 1
    done = shell("head -c 1000000 /dev/zero >&2")
    assert (done.code, done.flooded) == (0, False)
    assert len(done.err) <= WIDE.errors + 1


def test_a_program_is_killed_at_its_time_limit() -> None:
    done = shell("exec sleep 600", bounds=replace(WIDE, seconds=0.1))
    assert (done.code, done.in_time) == (-signal.SIGKILL, False)
    done = shell("exec sleep 600 >&- 2>&-", bounds=replace(WIDE, seconds=0.1))
    assert (done.code, done.in_time) == (-signal.SIGKILL, False)


def test_child_programs_end_with_the_program_that_started_them() -> None:
    done = shell("sleep 600 & echo $!; exec yes")
    assert done.flooded
    assert_ends(int(done.out.split(b"\n")[0]))
    done = shell("sleep 600 >&- 2>&- & echo $!")
    assert (done.code, done.in_time) == (0, True)
    assert_ends(int(done.out))


def assert_ends(pid: int) -> None:
    process = SystemProcesses()
    wait_until(lambda: not process.identify(pid).started, lambda: f"{pid} is still running")


def test_a_program_writes_no_file_above_its_size_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    done = shell('exec cat /dev/zero >"$0"', str(file), bounds=replace(WIDE, file=MEGABYTE))
    assert done.code == -signal.SIGXFSZ
    assert done.in_time


def test_the_limits_are_in_force_when_the_program_starts() -> None:
    """A git that forks before its limits are set starts a transport without limits."""
    bounds = replace(WIDE, file=MEGABYTE)
    for _ in range(20):
        done = run(
            ["/bin/cat", "/proc/self/limits"],
            env={"PATH": os.environ["PATH"]},
            cwd=Path("/"),
            bounds=bounds,
        )
        limits = {line[:20].strip(): line.split()[-2] for line in done.out.decode().splitlines()}
        assert (limits["Max file size"], limits["Max data size"]) == (
            str(bounds.file),
            str(bounds.memory),
        )


def test_a_missing_program_raises_file_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        run(["/no/such/program"], env={}, cwd=Path("/"), bounds=WIDE)
