"""An agent that is killed while real Puppet runs for a rollout."""

import json

from tests.rigs.fleet import Fleet
from tests.rigs.waiting import wait_until
from tests.scenarios.test_rollouts import POLICY, site_of

CLASS = """class app(String $dir) {
  exec { "/bin/touch ${dir}/begun && while ! /bin/test -e ${dir}/gate; do /bin/sleep 0.1; done":
    provider => shell,
  }
}
"""


def test_a_run_that_outlives_its_agent_is_reported_with_its_id_and_outcome(fleet: Fleet) -> None:
    operator = fleet.add_one("a")
    (db,) = fleet.add("db", puppet=True)
    db.node.write("modules/app/tags/r1/app/manifests/init.pp", CLASS)
    db.node.write("modules/app/tags/r1/manifest.yaml", "modulepath: []\n")
    classes = {"app": {"dir": str(db.root)}}
    db.node.write("input.yaml", json.dumps({"app": "app/tags/r1", "classes": classes}))
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
