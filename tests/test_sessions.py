"""Sessions of pytest with the project's plugins: long proofs are left out, and so is a quick test.

A quick test that starts Puppet or a server fails.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.node import PATIENCE, REPOSITORY

LONG = """
import pytest
from tests.rigs.long import LONG, with_sample

def test_short(): pass
@LONG
def test_proof(): pass
@pytest.mark.parametrize("number", with_sample(range(5), 2))
def test_number(number): pass
"""
QUICK = """
import subprocess, sys
from contextlib import suppress
import pytest

def start(*command):
    with suppress(PermissionError, FileNotFoundError):
        subprocess.run(command, check=False, cwd="/", stdin=subprocess.DEVNULL)

def test_git(): start("git", "--version")
def test_by_name(): start("puppet", "--version")
def test_of_a_child(): start("sh", "-c", "nats-server --version")
def test_by_path(): start("setpriv", "--pdeathsig", "KILL", "/usr/bin/etcd", "--version")
def test_agent(): start(sys.executable, "-m", "localpuppet", "agent", "--help")
def test_that_shows_puppet(bench): start("puppet")
@pytest.fixture
def served(): start("git", "--version")
def test_whose_fixture_has_the_name_of_a_rig(served): pass
@pytest.mark.parametrize("engine", ["memory", "etcd"])
def test_that_shows_a_server(engine): start("git" if engine == "memory" else engine)
@pytest.mark.slow
def test_that_is_slow(): start("ruby")
"""
STARTED = ("puppet --version", "nats-server --version", "/usr/bin/etcd --version", "agent --help")


def run_session(directory: Path, tests: str, *options: str, plugin: str) -> str:
    """Run a module of tests in its own process, with one plugin; return what pytest prints."""
    (directory / "test_it.py").write_text(tests)
    marks = "long\n  puppet\n  server\n  slow"
    (directory / "pytest.ini").write_text(f"[pytest]\nmarkers = {marks}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", f"tests.rigs.{plugin}", *options, directory],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout + done.stderr


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
    printed = run_session(tmp_path, LONG, *options, plugin="long")
    assert f"{counts} in " in printed, printed
    assert left in printed
    assert ("left to scripts/slow" in printed) == bool(left)


def test_a_quick_test_that_starts_puppet_or_a_server_fails(tmp_path: Path) -> None:
    printed = run_session(tmp_path, QUICK, "--quick", plugin="quick")
    assert "7 passed, 3 deselected, 4 errors" in printed, printed
    for words in STARTED:
        assert f"{words} (mark the test 'puppet'" in printed
