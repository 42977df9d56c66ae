"""What another release would change on a node, as the node reports, with real Puppet."""

import json

from tests.rigs.fleet import Fleet
from tests.scenarios.test_assignments import POLICY, release

SECRET = "sesame-4711"
BODY = """file { '/nowhere/motd': ensure => file, mode => '0600', content => '%s' }
  exec { 'x': command => '/bin/%s', refreshonly => true }
  %s"""


def test_a_node_reports_what_another_release_would_change_without_values(fleet: Fleet) -> None:
    """Another node denies the request; no release is applied or assigned."""
    a, b, c = fleet.add_one("a"), fleet.add_one("b", puppet=True), fleet.add_one("c")
    release(b, "r1", BODY % (SECRET, "true", "notify { 'gone': }"))
    release(b, "r2", BODY % (f"{SECRET}!", "true", "notify { 'new': }"))
    release(b, "r3", BODY % (SECRET, "true", f"fail('{SECRET}')"))
    b.node.write("input.yaml", json.dumps({"app": "app/tags/r1", "classes": {"app": {}}}))
    b.node.write("policies/puppet.policy", POLICY.replace("\tstatus ", "\tstatus compile "))
    c.node.write("policies/puppet.policy", POLICY)
    fleet.start()
    asked = ("rollout", "plan", "--catalogs", "--order", "none", "--wait-timeout", "5m")
    both = f"{b.name},{c.name}"
    done = a.run(*asked, "--nodes", both, "--release", "app/tags/r2", "--json")
    assert done.code == 1
    first, second = done.json["nodes"]
    assert first == {
        "node": str(b.name),
        "ok": True,
        "error": "",
        "added": ["Notify[new]", "Notify[r2 at 80]"],
        "removed": ["Notify[gone]", "Notify[r1 at 80]"],
        "changed": {"File[/nowhere/motd]": ["content"]},
        "left_out": 0,
    }
    assert (second["ok"], "denied by policy line 1 (default)" in second["error"]) == (False, True)
    done = a.run(*asked, "--nodes", str(b.name), "--release", "app/tags/r3")
    assert (done.code, "app/tags/r3: the catalog does not compile" in done.out) == (1, True)
    assert SECRET not in done.out + done.err
    done = a.run(*asked, "--nodes", str(b.name), "--release", "other/tags/r1")
    assert (done.code, "other/tags/r1 comes from another source" in done.out) == (1, True)
    assert not list((b.root / "var").glob("diff-*"))
    assert b.run("status", "--json").json["run"] is None
