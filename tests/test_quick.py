"""A quick session starts neither Puppet nor a server: a test that does so fails."""

from pathlib import Path

from tests.rigs.inner_session import run_session

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
    markers = ("puppet", "server", "slow")
    done = run_session(tmp_path, TESTS, "--quick", plugin="quick", markers=markers)
    assert "6 passed, 3 deselected, 4 errors" in done.stdout, done.stdout
    for words in STARTED:
        assert f"{words} (mark the test 'puppet'" in done.stdout
