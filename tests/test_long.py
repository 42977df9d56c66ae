"""A session leaves long proofs to `scripts/slow`, and reports how many."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.node import PATIENCE, REPOSITORY

TESTS = """
import pytest
from tests.rigs.long import LONG, with_sample

def test_short(): pass
@LONG
def test_proof(): pass
@pytest.mark.parametrize("number", with_sample(range(5), 2))
def test_number(number): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "counts", "left"),
    [
        (["-n0"], "2 passed, 5 deselected", "5 long tests are left to scripts/slow\n"),
        (["-n2"], "2 passed", "5 long tests are left to scripts/slow\n"),
        (["-n0", "--long"], "7 passed", ""),
    ],
)
def test_long_proofs_are_left_out_and_counted(
    tmp_path: Path, options: list[str], counts: str, left: str
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.rigs.long", *options, tmp_path],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{counts} in " in done.stdout, done.stdout
    assert left in done.stdout
    assert ("left to scripts/slow" in done.stdout) == bool(left)
