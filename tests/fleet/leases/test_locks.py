"""Locks of this node, with the real Puppet: over kills of the agent and of their users."""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.leases.lease import Leases
from tests.doubles.memory_store import FirstStore
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member, open_fifo
from tests.rigs.node import PATIENCE, Node
from tests.rigs.split_member import Split

MODULES = Path(__file__).parents[3] / "modules" / "localpuppet"
KEY = "/localpuppet/leases/migrate"


def migration(directory: Path) -> str:
    """Return a manifest that works under a lock until the gate is opened."""
    os.mkfifo(directory / "gate")
    return f"""
        cluster_lock {{ 'migrate': wait => 10 }}
        -> exec {{ '/bin/sh -c "touch {directory}/here; exec cat {directory}/gate"': }}
        """


def begun(member: Member, directory: Path) -> dict[str, Any]:
    """Wait until a run works under its lock; return its record."""
    member.node.wait_until((directory / "here").exists)
    return member.node.wait_running()


def rob(fleet: Fleet) -> None:
    """Let another node have the lease, as when it had expired."""

    async def take() -> None:
        async with asyncio.timeout(PATIENCE), fleet.bus.open() as kv:
            entry = await kv.get(KEY)
            assert entry is not None
            assert await kv.remove_if_revision(KEY, entry.revision)
            clock, stores = SystemClock(), FirstStore()
            other = Leases(kv, clock, holder="c.example.com", session="x", stores=stores)
            assert await other.take("migrate", ttl=1000) is not None

    asyncio.run(take())


@pytest.fixture
def two(fleet: Fleet, tmp_path: Path) -> tuple[Member, Member]:
    """A node, and another whose Puppet works under a lock."""
    (a,) = fleet.add("a")
    (b,) = fleet.add("b", puppet=True)
    b.node.app(migration(tmp_path))
    fleet.start()
    fleet.send(a, b)
    begun(b, tmp_path)
    return a, b


def test_a_restarted_agent_resumes_the_lock_of_a_running_run(
    fleet: Fleet, tmp_path: Path, two: tuple[Member, Member]
) -> None:
    a, b = two
    run = b.node.recorded()["id"]
    b.kill()
    b.start()
    b.wait_log(f"resumed the lock migrate for run {run}")
    assert f"{b.name} has it" in a.run("lease", "migrate", "--", "true", code=75).err
    b.node.app("notify { 'hello': }")  # what the run after this one does
    open_fifo(tmp_path / "gate")
    done = a.run("lease", "migrate", "--wait-timeout", "5m", "--", "echo", "mine")
    assert (done.code, done.out) == (0, "mine\n"), done.err
    fleet.settle()
    status = json.loads((b.node.state / "runs" / run / "status.json").read_text())
    assert status["outcome"] == "changed"


def test_a_lone_puppet_keeps_its_lock(tmp_path: Path, two: tuple[Member, Member]) -> None:
    a, b = two
    record = b.node.recorded()
    os.kill(record["supervisor"]["pid"], signal.SIGKILL)
    b.wait_log("interrupted: its supervisor died")
    a.run("lease", "migrate", "--", "true", code=75)
    b.kill()
    b.start()
    b.wait_log(f"resumed the lock migrate for run {record['id']}")
    os.kill(record["puppet"]["pid"], signal.SIGKILL)
    b.wait_log(f"releasing the lock migrate: run {record['id']} has ended")
    a.run("lease", "migrate", "--wait-timeout", "5m", "--", "true", code=0)
    open_fifo(tmp_path / "gate")


@pytest.mark.parametrize("supervised", [True, False])
def test_a_restarted_agent_ends_a_run_whose_lock_another_node_got(
    fleet: Fleet, two: tuple[Member, Member], supervised: bool
) -> None:
    a, b = two
    record = b.node.recorded()
    b.node.app("notify { 'hello': }")
    b.kill()
    if not supervised:
        os.kill(record["supervisor"]["pid"], signal.SIGKILL)
    rob(fleet)
    b.start()
    b.wait_log(f"ending run {record['id']}: its lock was lost")
    b.wait_log("run .* changed")  # of the causes that the agent before owed
    status = b.run("status", record["id"], "--json").json["run"]
    assert status["outcome"] == ("cancelled" if supervised else "interrupted")
    assert "c.example.com has it" in a.run("lease", "migrate", "--", "true").err


def puppet_apply(node: Node, code: str, socket_path: str) -> "subprocess.Popen[str]":
    """Start a Puppet with no supervisor around it."""
    place = node.root / "plain"
    for name in ("conf", "var", "public"):
        (place / name).mkdir(parents=True)
    (place / "site.pp").write_text(code)
    process = subprocess.Popen(
        [
            *("puppet", "apply", "--confdir", "conf", "--vardir", "var", "--publicdir", "public"),
            *("--modulepath", str(MODULES), "site.pp"),
        ],
        cwd=place,
        env={"PATH": os.environ["PATH"], "HOME": str(place), "LOCALPUPPET_SOCKET": socket_path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    node.running.append(process)
    return process


def test_a_puppet_without_a_run_is_ended_if_its_lock_is_lost(fleet: Fleet, tmp_path: Path) -> None:
    _, b = fleet.add("a", "b")
    fleet.start()
    puppet = puppet_apply(b.node, migration(tmp_path), str(fleet.sockets / "b"))
    b.node.wait_until((tmp_path / "here").exists)
    rob(fleet)
    b.kill()
    b.start()
    b.wait_log(f"ending process {puppet.pid}: its lock was lost")
    assert puppet.wait(PATIENCE) != 0

    def nobody_reads() -> bool:
        try:
            os.close(os.open(tmp_path / "gate", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return True
        return False

    b.node.wait_until(nobody_reads)


def test_the_lock_of_a_puppet_without_a_run_ends_with_it_on_two_sides(split: Split) -> None:
    run_side = split.run_side()
    split.network_side()
    path = split.node.root / "var" / "agent.sock"
    puppet = puppet_apply(split.node, migration(split.node.root), str(path))
    split.wait_for(run_side, f"took the lock migrate for process {puppet.pid}")
    split.node.wait_until((split.node.root / "here").exists)  # Puppet has the answer
    run_side.end(signal.SIGKILL)
    again = split.run_side()
    split.wait_for(again, f"resumed the lock migrate for process {puppet.pid}")
    split.other.run("lease", "migrate", "--", "true", code=75)
    puppet.kill()
    split.wait_for(again, f"releasing the lock migrate: process {puppet.pid} has ended")
    split.other.run("lease", "migrate", "--wait-timeout", "5m", "--", "true", code=0)
    open_fifo(split.node.root / "gate")  # for the command that outlives Puppet
