"""Releases that cut a node off by a real firewall, and a real server that hangs, dies and is back.

The node is in a separate network, as in `test_faults_server`. Needs root and nftables.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.buses import SHORT, nats
from tests.rigs.fleet import Fleet
from tests.rigs.fleet_fixtures import fleet_on
from tests.rigs.waiting import wait_until
from tests.scenarios.test_faults_server import Island, island

POLICY = (
    "policy default deny\n"
    "allow\tchoria=a.example.com\tstatus disable enable runonce deploy:app/tags/*\t*\t*\n"
)
WITHIN = 4.0
UNSERVED = (
    "app/tags/r3 is not confirmed: the bus does not answer any node, so this node is not cut off"
)
# What the releases do. r1 removes what r2 made: what a release does not manage stays.
OPEN = "nft delete table inet lptest || true"
CUT = "nft 'table inet lptest { chain out { type filter hook output priority 0; policy drop; }; }'"
CLASS = (
    "class app { exec { \"%s\": provider => shell, path => '/usr/sbin:/usr/bin:/sbin:/bin' } }\n"
)


class Apart:
    """An operator who deploys, and a node in a separate network."""

    def __init__(self, fleet: Fleet, far: Island) -> None:
        self.fleet, self.far = fleet, far
        self.a = fleet.add_one("a")
        self.asked = fleet.directory / "asked"
        asks = ["/bin/sh", "-c", f"touch {self.asked}; exit 1"]  # and says that it is cut off
        # A busy machine may be late with the confirmation of the first release.
        agent = {"confirm": "5m", "confirm_command": asks}
        self.b = fleet.add_one("b", puppet=True, agent=agent)
        self.go = self.b.root / "go"
        waits = f"until [ -e {self.go} ]; do sleep 0.1; done"
        for tag, script in (("r1", OPEN), ("r2", CUT), ("r3", waits)):
            self.b.node.release(tag, CLASS % script)
        self.b.node.want("assigned")
        self.b.node.write("policies/puppet.policy", POLICY)
        self.starts()
        fleet.start()

    def starts(self) -> None:
        """Start the node's agent in its network."""
        self.b.start(before=self.far.inside)

    def is_impatient(self) -> None:
        """Have the node roll back what is not confirmed within WITHIN seconds."""
        known = json.loads((self.b.root / "localpuppet.yaml").read_text())
        known["agent"]["confirm"] = f"{WITHIN:g}s"
        self.b.node.write("localpuppet.yaml", json.dumps(known))
        assert self.b.stop() == 0
        self.starts()
        self.fleet.present(self.b)

    def confirmation(self) -> dict[str, Any]:
        """Return what the node remembers of its confirmation."""
        file = self.b.root / "var" / "confirmation.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until what the node remembers is so; return it."""
        found: dict[str, Any] = wait_until(
            lambda: told if holds(told := self.confirmation()) else None,
            lambda: f"{self.confirmation()}\n{self.b.log}",
        )
        return found


@pytest.fixture
def apart(tmp_path: Path, puppet_probe: str) -> Iterator[Apart]:
    with island() as made:
        for bus in nats(tmp_path, host=made.address):
            bus.timeout = SHORT
            for fleet in fleet_on(tmp_path, bus, puppet_probe):
                yield Apart(fleet, made)


def test_a_node_that_is_cut_off_rolls_back_and_an_outage_causes_no_rollback(apart: Apart) -> None:
    a, b, server = apart.a, apart.b, apart.fleet.bus.server
    a.run("assign", b.name, "app/tags/r1", code=0)
    b.wait_log("app/tags/r1: confirmed")
    assert not apart.asked.exists()
    apart.is_impatient()

    # The firewall drops everything. The agent is killed while it waits, and resumes.
    options = ("--order", "none", b.name, "--release", "app/tags/r2", "--json")
    rolling = a.node.start("rollout", "run", *options)
    before = apart.until(lambda told: told.get("release") == "app/tags/r2")
    b.kill()
    assert before["stage"] == "pending"
    apart.starts()
    b.wait_log("app/tags/r2: no connection to the bus for 4s; rolling back")
    b.wait_log(r"app/tags/r2: rolled back")
    assert apart.asked.exists()
    assert apart.confirmation()["nonce"] == before["nonce"]
    rolled = a.node.finish(rolling)
    (told,) = rolled.json["nodes"]
    assert (rolled.code, told["result"]) == (1, "rolled back"), told
    assert "rolled back to app/tags/r1: no connection to the bus for 4s" in told["reason"]
    status = b.run("status", "--json").json
    assert (status["run"]["release"], status["rollback"]["input_release"]) == (
        "app/tags/r1",
        "app/tags/r2",
    )
    assert status["confirmation"]["stage"] == "rolled back"
    cut = b.run("why", before["run"]).out
    assert "app/tags/r2: rolled back (no connection to the bus for 4s)" in cut
    assert status["rollback"]["user"] == "this node: no connection to the bus for 4s"
    assert b.holds() == []

    # The server hangs from the run on, for longer than a confirmation may take, then dies.
    a.run("assign", b.name, "app/tags/r3", code=0)
    b.wait_log("running for request from")
    wait_until(
        lambda: b.run("status", "--json").json["run"]["release"] == "app/tags/r3", lambda: b.log
    )
    server.freeze()
    apart.go.touch()
    b.wait_log(UNSERVED)
    wait_until(lambda: b.holds() == [UNSERVED], lambda: b.log)
    server.kill()
    assert apart.confirmation()["stage"] == "pending"
    server.start()
    b.wait_log("app/tags/r3: confirmed")
    assert b.holds() == []
    assert b.log.count("rolling back") == 1
