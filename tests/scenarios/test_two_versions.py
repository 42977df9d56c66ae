"""A fleet with nodes of this version and of the next snapshot, while it is upgraded and back."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localpuppet import __version__
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.node import COMMAND, REPOSITORY, completed
from tests.rigs.waiting import PATIENCE
from tests.scenarios.test_rollouts import site_of

pytestmark = pytest.mark.puppet

NEXT = "0.2.0.dev1"
POLICY = """policy default deny
allow\t*\ttrigger\t*\t*
allow\tchoria=a.example.com\tstatus disable enable runonce last_run_summary\t*\t*
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> list[str]:
    """Return the command of the next snapshot: this tree with a later version."""
    top = tmp_path / "snapshot"
    # With its compiled code, which its processes would otherwise compile again.
    shutil.copytree(REPOSITORY / "localpuppet", top / "localpuppet")
    for name in ("modules", "enc", "manifests"):
        shutil.copytree(REPOSITORY / name, top / name)
    own = top / "localpuppet" / "__init__.py"
    own.write_text(own.read_text().replace(__version__, NEXT))
    start = f"import sys; sys.path.insert(0, {str(top)!r}); sys.argv[0] = 'localpuppet'\n"
    return [sys.executable, "-c", f"{start}from localpuppet.main import main; sys.exit(main())"]


def run(member: Member, command: list[str], *arguments: str) -> tuple[int, str]:
    """Run a command of the program that a node has; return its exit code and output."""
    environment = member.node.environment(PYTHONPATH=str(REPOSITORY))
    done = completed(*command, *arguments, check=False, env=environment)
    assert "Traceback" not in done.err, done.err
    return done.code, done.out


def versions(fleet: Fleet) -> dict[str, Any]:
    listed = fleet.members[0].run("nodes", "--json").json["nodes"]
    return {node["node"].partition(".")[0]: node["version"] for node in listed}


@contextmanager
def stopping(member: Member) -> Iterator[None]:
    """Ask an agent to end; at the end of the block, wait until it has ended in good order."""
    process = member.process
    assert process is not None
    process.terminate()
    yield
    assert process.wait(PATIENCE) == 0, member.log
    member.process = None


def test_nodes_of_two_versions_serve_each_other(fleet: Fleet, snapshot: list[str]) -> None:
    a, b, c = fleet.add("a", "b", "c")
    for member in (b, c):
        member.node.write("policies/puppet.policy", POLICY)
    c.command = snapshot
    site = str(a.node.write("site.yaml", site_of([b], [c])))
    fleet.start()
    assert versions(fleet) == {"a": __version__, "b": __version__, "c": NEXT}

    # Triggers, and rollouts of either version of the operator's machine.
    for sender, receiver in ((b, c), (c, b)):
        (uuid,) = fleet.send(sender, receiver)
        fleet.accepted(receiver, uuid)
    for command in (COMMAND, snapshot):
        code, out = run(a, command, "rollout", "run", "--site", site, "--json")
        assert (code, '"state": "done"' in out) == (0, True), out
    # Each version resumes and lists rollouts of the other.
    for command in (COMMAND, snapshot):
        code, out = run(a, command, "rollout", "list", "--json")
        assert (code, out.count('"state": "done"')) == (0, 2), out


def test_a_node_is_upgraded_during_a_run_and_back(fleet: Fleet, snapshot: list[str]) -> None:
    a = fleet.add_one("a")
    b = fleet.add_one("b", puppet=True)
    b.node.write("policies/puppet.policy", POLICY)
    b.node.app(
        "exec { '/bin/true':\n"
        f"  onlyif => '/bin/sh -c \"while [ ! -e {b.root}/gate ]; do sleep 0.1; done\"',\n}}"
    )
    fleet.start()
    ids: list[list[str]] = []
    for number, command in enumerate((snapshot, [*COMMAND]), 1):
        (b.root / "gate").unlink(missing_ok=True)
        (uuid,) = fleet.send(a, b)
        fleet.accepted(b, uuid)
        b.node.wait_running()
        (later,) = fleet.send(a, b)  # it waits on the disk, for the other version
        fleet.accepted(b, later)
        with stopping(b):
            b.wait_log("ending after the active run", number)
            (b.root / "gate").touch()
        b.command = command
        b.start()
        fleet.present(b)
        b.wait_log("run .* changed", 2 * number)
        code, out = run(b, command, "history", "--json")
        ids.append([record["id"] for record in json.loads(out)["runs"]])
        assert (code, len(ids[-1])) == (0, 2 * number), out
        assert run(b, command, "status")[0] == 0
    assert set(ids[0]) < set(ids[1]), "the earlier version reads what the later one wrote"
