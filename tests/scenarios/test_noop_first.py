"""Noop first, over two real agents and real Puppet: looked at, approved, changed meanwhile."""

import json
from typing import Any

from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.waiting import wait_until
from tests.scenarios.test_rollouts import POLICY, site_of

CLASS = """class app(String $dir, String $text = 'one') {
  file { "${dir}/f": content => $text }
  file { "${dir}/g": content => 'always' }
}
"""

TAKEOVER = "db.example.com\ttakeover"


def has_app(member: Member, text: str = "one") -> None:
    """Have a node want two files with some text."""
    directory = str(member.root)
    member.node.write("modules/app/tags/r1/app/manifests/init.pp", CLASS)
    member.node.write("modules/app/tags/r1/manifest.yaml", "modulepath: []\n")
    classes = {"app": {"dir": directory, "text": text}}
    member.node.write("input.yaml", json.dumps({"app": "app/tags/r1", "classes": classes}))
    member.node.write("policies/puppet.policy", POLICY)


def test_what_was_seen_with_noop_is_what_changes(fleet: Fleet) -> None:
    """A node for which more would change waits until somebody approves that.

    Here that is somebody on another machine. The second node also waits until it has heard of what
    the first one's run left.
    """
    operator = fleet.add_one("a")
    db, web = fleet.add("db", "web", puppet=True)
    for member in (db, web):
        has_app(member)
    operator.node.write("policies/puppet.policy", POLICY.replace("a.example.com\t*", TAKEOVER))
    site = str(operator.node.write("site.yaml", site_of([db], [web])))
    fleet.start()

    def rollout(*words: str) -> list[str]:
        return ["rollout", "run", "--site", site, *words]

    looked = operator.run(*rollout("--noop", "--json"))
    assert looked.code == 0, looked.out + looked.err
    report = looked.json
    digest = report["digest"]
    changes = {one["node"]: one["changes"] for one in report["changes"]}
    assert changes[web.name] == [
        {"type": "File", "title": f"{web.root}/{name}", "property": "ensure"} for name in "fg"
    ]
    assert not (db.root / "f").exists()
    # Meanwhile somebody has made one file of the first node, and another one of the second.
    (db.root / "g").write_text("always")
    (web.root / "f").write_text("by hand")
    process = operator.node.start(*rollout("--approve", digest[:16], "--json"))

    def waiting() -> dict[str, Any] | None:
        found = operator.run("rollout", "status", "--json").json
        return found if found["waits_for"] else None

    web.wait_log("run .* unchanged", 2)
    status = wait_until(waiting, lambda: "nobody waits for an approval")
    (differing,) = status["waits_for"]
    assert differing["node"] == web.name
    assert differing["why"] == "would make 1 change that was not approved"
    assert (db.root / "f").read_text() == "one"
    assert (web.root / "f").read_text() == "by hand"
    told = db.run("rollout", "approve", status["id"], web.name, "--of", str(operator.name))
    assert told.code == 0, told.err
    assert f"File[{web.root}/f] content" in told.out
    done = operator.node.finish(process)
    assert done.code == 0, done.out + done.err
    assert (web.root / "f").read_text() == "one"
    ended = done.json
    (difference,) = ended["differences"]
    assert difference["approved_by"].startswith("choria=db.example.com on ")
    assert ended["approval"] == {"rollout": report["id"], "digest": digest}
    (run,) = ended["groups"][1]["runs"]
    assert web.run("why", run["run"], "--json").json["request"]["causes"]["causes"][0]["after"]
