"""A quick session starts neither Puppet nor a server: a test that does so fails."""

import subprocess
import sys
from pathlib import Path

from tests.rigs.node import PATIENCE, REPOSITORY

TESTS = """
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
@pytest.mark.parametrize("engine", ["memory", "etcd"])
def test_that_shows_a_server(engine): start("git" if engine == "memory" else engine)
@pytest.mark.slow
def test_that_is_slow(): start("ruby")
"""
STARTED = ("puppet --version", "nats-server --version", "/usr/bin/etcd --version", "agent --help")


def test_a_quick_test_that_starts_puppet_or_a_server_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = puppet\n  server\n  slow\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.rigs.quick", "--quick", tmp_path],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "6 passed, 3 deselected, 4 errors" in done.stdout, done.stdout
    for words in STARTED:
        assert f"{words} (mark the test 'puppet'" in done.stdout
