"""A session leaves long proofs to `scripts/slow`, and reports how many."""

from pathlib import Path

import pytest

from tests.rigs.inner_session import run_session

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
    done = run_session(tmp_path, TESTS, *options, plugin="long", markers=("long",))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{counts} in " in done.stdout, done.stdout
    assert left in done.stdout
    assert ("left to scripts/slow" in done.stdout) == bool(left)
