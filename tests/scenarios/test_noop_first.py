"""Noop first, with two real agents and real Puppet: predicted, approved, changed meanwhile."""

from typing import Any

from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.waiting import wait_until
from tests.scenarios.test_rollouts import POLICY, site_of

CLASS = """class app(String $dir) {
  file { "${dir}/f": content => 'one' }
  file { "${dir}/g": content => 'always' }
}
"""

TAKEOVER = "db.example.com\ttakeover"


def texts(member: Member) -> list[str]:
    return [(member.root / name).read_text() for name in "fg"]


def looked_at(operator: Member, web: Member, *words: str) -> dict[str, Any]:
    """Run a rollout with noop; return its report."""
    looked = operator.run(*words, "--noop", "--json", code=0)
    report: dict[str, Any] = looked.json
    changes = {one["node"]: one["changes"] for one in report["changes"]}
    assert changes[web.name] == [
        {"type": "File", "title": f"{web.root}/{name}", "property": "ensure"} for name in "fg"
    ]
    return report


def waits(operator: Member, before: str = "") -> dict[str, Any]:
    """Return what a rollout waits for, as soon as that is another difference than before."""

    def found() -> dict[str, Any] | None:
        status: dict[str, Any] = operator.run("rollout", "status", "--json").json
        return next((one for one in status["waits_for"] if one["difference"] != before), None)

    told: dict[str, Any] = wait_until(found, lambda: "no node waits for an approval")
    return told


def test_only_changes_seen_with_noop_are_made_without_approval(fleet: Fleet) -> None:
    """A node for which more would change waits until an operator approves that.

    Here that is an operator on another machine. The second node also waits until it has received
    the exports of the first one's run. The approval does not cover what changes while it waits.
    """
    operator = fleet.add_one("a")
    db, web = fleet.add("db", "web", puppet=True)
    for member in (db, web):
        member.node.release("r1", CLASS)
        member.node.want("tags/r1", dir=str(member.root))
        member.node.write("policies/puppet.policy", POLICY)
    operator.node.write("policies/puppet.policy", POLICY.replace("a.example.com\t*", TAKEOVER))
    site = str(operator.node.write("site.yaml", site_of([db], [web])))
    fleet.start()
    words = ("rollout", "run", "--site", site)
    report = looked_at(operator, web, *words)
    assert not (db.root / "f").exists()
    # Meanwhile a person has made one file on the first node, and another one on the second.
    (db.root / "g").write_text("always")
    (web.root / "f").write_text("by hand")
    process = operator.node.start(*words, "--approve", report["digest"][:16], "--json")

    def approve() -> str:
        rollout = operator.run("rollout", "status", "--json").json["id"]
        told = db.run(
            "rollout", "approve", rollout, web.name, "--operator", str(operator.name), code=0
        )
        return told.out

    web.wait_log("run .* unchanged", 2)
    first = waits(operator)
    assert (first["node"], first["reason"]) == (
        web.name,
        "would make 1 change that was not approved",
    )
    assert (db.root / "f").read_text() == "one"
    (web.root / "g").write_text("by hand, too")
    assert f"File[{web.root}/f] content" in approve()
    waits(operator, first["difference"])
    assert texts(web) == ["by hand", "by hand, too"]
    told = approve()
    assert f"File[{web.root}/g] content" in told
    assert f"File[{web.root}/f]" not in told
    done = operator.node.finish(process, code=0)
    assert texts(web) == ["one", "always"]
    ended = done.json
    (difference,) = ended["differences"]
    assert difference["approved_by"].startswith("choria=db.example.com on ")
    assert ended["approval"] == {"rollout": report["id"], "digest": report["digest"]}
    (run,) = ended["groups"][1]["runs"]
    assert web.run("why", run["run"], "--json").json["request"]["causes"]["causes"][0][
        "awaited_entries"
    ]
