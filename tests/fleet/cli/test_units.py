"""The units: systemd's verdict on them, and that localpuppet works with their restrictions."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.cli.node_setup import AGENT, NAMES, SPLIT, TIMER, WEB
from tests.rigs.node import COMMAND, Done, Node, completed
from tests.rigs.split_member import NETWORK, Split
from tests.rigs.waiting import PATIENCE

# Exposure in tenths, as systemd 252 counts it: the internet (0.3), the host's network (0.5) and
# UNIX sockets (0.1) are its job; 0.2 for the addresses of servers that only a site knows; /proc
# beside processes and its own root directory, 0.1 each.
EXPOSED = 11
# Refuses the use of memory as code, as MemoryDenyWriteExecute= does, and starts the rest.
NO_NEW_CODE = """
import ctypes, os, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
assert ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    for name in NAMES:
        shutil.copy(shared_file(f"units/{name}"), tmp_path)
    return tmp_path


def analyze(*words: str, directory: Path) -> Done:
    return completed("systemd-analyze", *words, cwd=directory, check=False)


def settings(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in shared_file(f"units/{name}").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def test_systemd_understands_every_unit(units: Path) -> None:
    done = analyze("verify", "--man=no", *(f"./{name}" for name in NAMES), directory=units)
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize(
    ("unit", "more"),
    [
        ("localpuppet-agent-net.service", 0),
        ("localpuppet-web.service", 0),
        # It asks the kernel for the user of a connection: netlink, and the users of the machine.
        ("localpuppet-puppetdb.service", 2),
    ],
)
def test_units_with_network_have_the_expected_exposure(units: Path, unit: str, more: int) -> None:
    words = ("security", "--offline=true", "--no-pager")
    done = analyze(*words, f"--threshold={EXPOSED + more}", unit, directory=units)
    assert done.code == 0, done
    done = analyze(*words, f"--threshold={EXPOSED + more - 1}", unit, directory=units)
    assert done.code != 0, f"better than {EXPOSED + more} now: lower the threshold"


def test_the_verb_prints_them(node: Node) -> None:
    assert set(TIMER + AGENT + SPLIT + WEB) == set(NAMES)
    printed = node.run("units", "--json").json
    assert (printed["schema"], set(printed["units"])) == (1, set(NAMES))
    for name, text in printed["units"].items():
        assert text.startswith("[Unit]\n")
        assert node.run("units", name).out.rstrip("\n") == text.rstrip("\n")


def test_units_start_existing_commands(node: Node) -> None:
    for name in (*AGENT, *SPLIT, *WEB):
        for line in settings(name).get("ExecStart", []):
            words = shlex.split(line)
            assert words[:2] == ["/usr/bin/env", "localpuppet"]
            node.run(*words[2:], "--help", code=0)


def test_the_parts_of_the_split_form_meet() -> None:
    socket = settings("localpuppet-agent-run.socket")
    network = settings("localpuppet-agent-net.service")
    assert socket["ListenStream"] == ["/run/localpuppet/run.sock"]
    assert socket["SocketGroup"] == network["Group"] == network["User"] == ["localpuppet"]
    assert network["RuntimeDirectory"] == ["localpuppet-net"]
    for name in ("localpuppet-agent.service", "localpuppet-agent-run.service"):
        assert settings(name)["KillMode"] == ["mixed"]
        assert settings(name)["RuntimeDirectoryPreserve"] == ["yes"]


def calls_of(name: str) -> set[str]:
    """Return the system calls in a set of systemd's."""
    found: set[str] = set()
    for line in completed("systemd-analyze", "syscall-filter", name).out.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            found |= calls_of(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def test_the_network_side_works_with_its_system_call_filter(split: Split) -> None:
    """From its start to its end, with a trigger and a lock in between, under strace."""
    allowed: set[str] = set()
    for value in settings("localpuppet-agent-net.service")["SystemCallFilter"]:
        named = set().union(*(calls_of(word) for word in value.lstrip("~").split()))
        allowed = allowed - named if value.startswith("~") else allowed | named
    split.node.app("cluster_lock { 'migrate': } -> notify { 'hello': }")
    run_side = split.run_side()
    trace = split.spool.parent / "trace"
    service = split.start(
        *("strace", "-f", "-qq", "-o", str(trace), sys.executable, "-c", NO_NEW_CODE),
        *(*COMMAND, "agent", "--side", "network"),
        user=NETWORK,
    )
    split.wait_for(service, "network side of a.example.com on etcd")
    done = split.other.run("trigger", "a.example.com", "--wait")
    assert done.code == 0, done.out + done.err + run_side.said()
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    subprocess.run(["kill", "-TERM", *children.read_text().split()], check=True)
    assert service.process.wait(PATIENCE) == 0, service.said()
    used = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(errors="replace"), re.MULTILINE))
    assert len(used) > 30
    assert used - allowed == set()
