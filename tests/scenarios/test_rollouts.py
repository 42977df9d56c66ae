"""Rollouts over real agents, by the command line."""

import re
import shutil
import signal
from collections.abc import Sequence

import pytest
import yaml

from tests.rigs.buses import SHORT
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member, read_line
from tests.rigs.waiting import wait_until

POLICY = "policy default deny\nallow\tchoria=a.example.com\t*\t*\t*\n"


def site_of(*groups: Sequence[Member]) -> str:
    """Return a site file in which each group needs all of the one before it."""
    shop = {}
    for step, group in enumerate(groups):
        for member in group:
            component: dict[str, object] = {"node": str(member.name), "produces": [f"level/{step}"]}
            if step:
                component["consumes"] = [f"level/{step - 1}"]
            shop[str(member.name).partition(".")[0]] = component
    return yaml.safe_dump({"applications": {"shop": shop}})


class Shop:
    """An operator, a database, and two web servers that need it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.operator, self.db, *self.webs = fleet.add("a", "db", "web1", "web2")
        self.nodes = [self.db, *self.webs]
        for member in self.nodes:
            member.node.write("policies/puppet.policy", POLICY)
        self.site = str(self.operator.node.write("site.yaml", site_of([self.db], self.webs)))
        fleet.start()

    def ended_elsewhere(self) -> None:
        """Check that the machine where a rollout began shows how it ended on another."""
        told = self.operator.run("rollout", "status")
        assert (told.code, "done (3 done)" in told.out) == (0, True), told.out + told.err
        status = self.operator.run("rollout", "status", "--json").json
        assert (status["state"], status["from_bus"], status["waits_for"]) == ("done", True, [])
        (listed,) = self.operator.run("rollout", "list", "--json").json["rollouts"]
        assert (listed["state"], listed["counts"]) == ("done", {"done": 3})
        assert re.search(r"\bdone\b.*3 done", self.operator.run("rollout", "list").out)

    def elsewhere(self) -> Member:
        """Return another machine with the operator's key."""
        machine = self.fleet.add_one("pc", identity={"name": str(self.operator.name)})
        key = machine.root / "var" / "keys" / "node.pem"
        shutil.copy2(self.operator.root / "var" / "keys" / "node.pem", key)
        return machine

    def run(self, *options: str) -> tuple[int, dict[str, str]]:
        """Roll out; return the exit code, and how each node's part ended."""
        done = self.operator.run("rollout", "run", "--site", self.site, "--json", *options)
        return done.code, {
            one["node"].partition(".")[0]: one["result"] for one in done.json["nodes"]
        }

    def report(self) -> dict[str, object]:
        return self.operator.run("rollout", "report", "--json").json

    def runs(self) -> list[int]:
        """Return how often each node has run."""
        return [member.count("started") for member in self.nodes]

    def free(self) -> bool:
        """Return whether no node is on hold."""
        found = self.operator.run("nodes", "--json").json["nodes"]
        return [one["node"] for one in found if one.get("holds")] == []


@pytest.fixture
def shop(nats_fleet: Fleet) -> Shop:
    nats_fleet.bus.timeout = SHORT
    return Shop(nats_fleet)


@pytest.fixture
def local(fleet: Fleet) -> Shop:
    return Shop(fleet)


DONE = {"db": "succeeded", "web1": "succeeded", "web2": "succeeded"}


def test_a_killed_rollout_resumes_and_no_node_runs_twice(shop: Shop) -> None:
    """Killed while the database runs; a trigger that comes meanwhile waits, whatever its ttl.

    Then the bus is unreachable while the web servers run; that is on another machine.
    """
    shop.db.behave(gate=True)
    checked = shop.operator.node.root / "checked"
    checked.mkdir()
    process = shop.operator.node.start(
        "rollout", "run", "--site", shop.site, "--check", f"/bin/mkdir '{checked}/%{{node}}'"
    )
    shop.db.wait_log("history .*started")
    shop.fleet.send_short(shop.operator, shop.webs[0])
    process.send_signal(signal.SIGKILL)
    process.wait()
    told = shop.operator.run("rollout", "status", code=1)
    assert "interrupted (" in told.out
    shop.db.open_gate()
    shop.db.wait_log("history .*ended")
    for web in shop.webs:
        web.behave(gate=True)
    laptop = shop.elsewhere()
    process = laptop.node.start("rollout", "resume", "--json")
    for web in shop.webs:
        web.wait_log("history .*started")
    shop.fleet.bus.server.kill()
    listed = shop.operator.run("rollout", "list")
    assert (listed.code, "interrupted" in listed.out) == (0, True)
    assert "cannot tell whether interrupted rollouts continued elsewhere" in listed.err
    for web in shop.webs:
        web.open_gate()
        web.wait_log("history .*ended")
        web.behave()
    shop.fleet.bus.server.start()
    resumed = laptop.node.finish(process, code=0)
    assert (resumed.json["epoch"], resumed.json["counts"]) == (2, {"done": 3})
    cannot, again = (resumed.err.find(one) for one in ("cannot reach the bus", "reachable again"))
    assert 0 <= cannot < again, resumed.err
    shop.ended_elsewhere()
    shop.webs[0].wait_log("history .*started .*trigger from a.example.com|trigger from a")
    shop.webs[0].wait_log("history .*ended", 2)
    assert shop.runs() == [1, 2, 1]
    assert shop.free()
    assert sorted(file.name for file in checked.iterdir()) == sorted(
        str(member.name) for member in shop.nodes
    )
    begun = [one["started_at"] for group in resumed.json["groups"] for one in group["runs"]]
    assert begun == sorted(begun)


def stop_is_not_heard_at_first(local: Shop, rollout: str) -> None:
    """Have a finished rollout release the database, which refuses that once."""
    status_only = POLICY.replace("\t*\t*\t*", "\tstatus\t*\t*")
    local.db.node.write("policies/puppet.policy", status_only)
    done = local.operator.run("rollout", "stop")
    assert (done.code, local.free()) == (1, False)
    told = " ".join(done.out.split())
    assert re.search(r"db.example.com may be held until \S+ \S+ UTC: denied by policy", told)
    assert f"the hold expires then; 'localpuppet rollout stop {rollout}' asks again" in told
    local.db.node.write("policies/puppet.policy", POLICY)
    local.operator.run("rollout", "stop", rollout, code=0)
    assert local.free()
    local.operator.run("rollout", "stop", rollout, code=2)


def test_a_failure_and_nodes_that_are_not_ready(local: Shop) -> None:
    local.db.behave(exit=3)
    found = local.run("--investigate", "2h")
    assert found == (1, {"db": "failed", "web1": "not reached", "web2": "not reached"})
    assert local.report()["reason"] == "1 node failed; none may fail"
    assert local.report()["held_for_investigation"] == ["db.example.com"]
    assert not local.free()
    first = str(local.report()["id"])
    stop_is_not_heard_at_first(local, first)
    assert local.run("--failed-in", first)[0] == 1
    assert not local.free()
    local.db.behave()
    parent = str(local.report()["id"])
    assert local.run("--failed-in", parent) == (0, DONE), "the retry releases held nodes first"
    assert local.report()["parent"] == parent
    assert local.free()
    measured = (local.operator.root / "var" / "metrics-rollouts.prom").read_text()
    assert 'localpuppet_last_rollout_nodes{state="done"} 3\n' in measured
    assert 'localpuppet_last_rollout_outcome{outcome="done"} 1\n' in measured
    assert local.runs() == [3, 1, 1]
    listed = local.operator.run("rollout", "list", "--json").json["rollouts"]
    assert [one["state"] for one in listed] == ["done", "failed", "failed"]
    done = local.operator.run(
        "rollout", "run", "--site", local.site, "--failed-in", listed[0]["id"]
    )
    assert (done.code, done.out) == (2, "")
    assert "no node failed" in done.err

    # Then a person holds one node, and another node's policy denies this caller.
    db, web1, web2 = local.nodes
    web1.run("disable", "-m", "by hand")
    web2.node.write("policies/puppet.policy", POLICY.replace("\t*\t*\t*", "\tstatus enable\t*\t*"))
    code, _ = local.run()
    assert code == 1
    why = str(local.report()["reason"])
    assert "web1.example.com: on hold: by hand (held by " in why
    assert "web2.example.com: denied by policy line 1 (default)" in why
    assert local.runs() == [3, 1, 1]
    assert db.log.count("accepted a step") == 3
    assert local.run("--skip-unready") == (
        1,
        {"db": "succeeded", "web1": "skipped", "web2": "skipped"},
    )
    held = local.operator.run("nodes", "--json").json["nodes"]
    assert [hold["reason"] for one in held for hold in one.get("holds", [])] == ["by hand"]


def test_an_interrupted_rollout_releases_its_nodes_and_resumes(local: Shop) -> None:
    """^C; meanwhile another rollout of the same nodes is refused; then the agent is killed."""
    db, web1, _ = local.nodes
    db.behave(gate=True)
    process = local.operator.node.start("rollout", "run", "--site", local.site)
    assert "3 nodes, 3 runs in 2 groups" in read_line(process)
    db.wait_log("history .*started")
    assert local.run()[0] == 1
    why = str(local.report()["reason"])
    assert why.startswith("db.example.com, ")
    assert ": on hold: rollout " in why
    process.send_signal(signal.SIGINT)
    assert "no further nodes start" in read_line(process)
    db.open_gate()
    done = local.operator.node.finish(process, code=130)
    assert "stopped: by SIGINT (1 done, 2 not reached)" in done.out
    assert local.free()
    assert local.runs() == [1, 0, 0]
    first = local.operator.run("rollout", "list", "--json").json["rollouts"][-1]["id"]
    web1.behave(kill="begin", gate=True)
    process = local.operator.node.start("rollout", "resume", first, "--json")
    web1.killed()
    web1.behave()
    web1.start()
    done = local.operator.node.finish(process, code=1)
    assert done.json["groups"][1]["runs"][0]["reason"] == "the agent was killed during the run"
    assert [one["result"] for one in done.json["nodes"]] == ["succeeded", "failed", "succeeded"]
    assert local.runs() == [1, 1, 1]


CLASS = """class app(String $dir) {
  exec { "/bin/touch ${dir}/begun && while ! /bin/test -e ${dir}/gate; do /bin/sleep 0.1; done":
    provider => shell,
  }
}
"""


def test_a_run_that_outlives_its_agent_is_reported_with_its_id_and_outcome(fleet: Fleet) -> None:
    operator = fleet.add_one("a")
    (db,) = fleet.add("db", puppet=True)
    db.node.release("r1", CLASS)
    db.node.want("tags/r1", dir=str(db.root))
    db.node.write("policies/puppet.policy", POLICY)
    site = str(operator.node.write("site.yaml", site_of([db])))
    fleet.start()
    process = operator.node.start("rollout", "run", "--site", site, "--json")
    wait_until((db.root / "begun").exists, lambda: db.log)
    db.kill()
    left = db.root / "var/agent/.reactions.json.0123456789ab"  # of a write during the kill
    left.touch()
    db.start()
    db.wait_log("still waiting for a run: ")
    assert not left.exists()
    (db.root / "gate").touch()
    done = operator.node.finish(process)
    (run,) = done.json["groups"][0]["runs"]
    (recorded,) = db.run("history", "--json").json["runs"]
    assert (run["run"], run["outcome"]) == (recorded["id"], recorded["outcome"])
    assert (done.code, run["outcome"]) == (0, "changed"), done.err
