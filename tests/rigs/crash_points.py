"""Which calls of a process fail in a crash test: a sample with the tests, each one at night."""

import os
import subprocess
import sys
from pathlib import Path

from tests.rigs.node import PATIENCE, REPOSITORY

FULL = os.environ.get("CRASH_FULL") == "1"


def crash_points(total: int, size: int) -> list[int]:
    """Return the numbers of the calls that fail, of `total`: `size` of them, evenly spread."""
    if FULL or size >= total:
        return list(range(1, total + 1))
    return [1 + total * (2 * number + 1) // (2 * size) for number in range(size)]


def run_under_strace(
    trace: Path, *strace: str, module: str, arguments: tuple[str, ...]
) -> "subprocess.CompletedProcess[str]":
    """Run a module of the tests under strace, which kills it or lets a call fail."""
    words = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(trace), *strace]
    done = subprocess.run(
        [*words, sys.executable, "-m", module, *arguments],
        env={"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
