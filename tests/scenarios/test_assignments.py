"""Releases assigned by signed request, with a real agent and real Puppet, by the command line."""

import json

from tests.rigs.fleet import Fleet
from tests.rigs.member import Member

POLICY = (
    "policy default deny\n"
    "allow\tchoria=a.example.com\tstatus deploy:app/tags/* values\t*\t*\n"
    "allow\tchoria=a.example.com\tdisable enable runonce\t*\t*\n"
)
CLASS = """class app(Integer $port = 80, Sensitive[String] $key = Sensitive('k')) {
  notify { "%s at ${port}": }
  %s
}
"""
LOCK = "version: 1\nmodules: {}\nsources: {}\n"


def release(member: Member, tag: str, more: str = "") -> None:
    """Put a locked release on a node."""
    member.node.write(f"modules/app/tags/{tag}/manifest.yaml", "modulepath: []\n")
    member.node.write(f"modules/app/tags/{tag}/manifest.lock", LOCK)
    member.node.write(f"modules/app/tags/{tag}/app/manifests/init.pp", CLASS % (tag, more))


def takes_app(member: Member) -> None:
    """Have a node take releases of `app` by request."""
    for tag in ("r1", "r2"):
        release(member, tag)
    release(member, "r3", "fail('broken')")
    member.node.write("input.yaml", json.dumps({"app": "app/assigned", "classes": {"app": {}}}))
    member.node.write("policies/puppet.policy", POLICY)


def why(member: Member) -> dict[str, object]:
    request: dict[str, object] = member.run("why", "--json").json["request"]
    return request


def test_a_node_takes_its_release_by_request(fleet: Fleet) -> None:
    """A refused request changes nothing."""
    a, b = fleet.add_one("a"), fleet.add_one("b", puppet=True)
    takes_app(b)
    fleet.start()
    early = b.run("apply")
    assert (early.code, "no release of app is assigned to this node" in early.err) == (2, True)
    assert a.run("assign", b.name, "app/tags/r1").out == (
        "b.example.com: took app/tags/r1; its run follows\n"
    )
    b.wait_log("run .* changed")
    request = why(b)
    assigned = request["assignment"]
    assert isinstance(assigned, dict)
    assert (request["release"], assigned["by"], assigned["serial"]) == (
        "app/tags/r1",
        "choria=a.example.com",
        1,
    )
    assert "by choria=a.example.com at " in b.run("why").out

    bad = a.node.write("bad.yaml", "classes: {app: {port: high}}\n")
    refused = a.run("assign", b.name, "app/tags/r2", "--values", str(bad))
    assert refused.code == 1
    assert "classes.app.port: the parameter 'port' of the class app must be Integer" in refused.err
    assert a.run("assign", b.name, "app/tags/r2", "--allow-older").err.endswith(
        "denied by policy line 1 (default): choria=a.example.com older\n"
    )
    good = a.node.write("good.yaml", "classes: {app: {port: 81}}\n")
    assert a.run("assign", b.name, "app/tags/r2", "--values", str(good)).code == 0
    b.wait_log("run .* changed", 2)
    request = why(b)
    assert (request["release"], request["node_document"]) == (
        "app/tags/r2",
        {"classes": {"app": {"port": 81}}, "environment": "production", "parameters": {}},
    )

    # A rollout of a release that does not compile: back to what ran before, with its values.
    rolled = a.run(
        "rollout",
        "run",
        "--order",
        "none",
        "--nodes",
        b.name,
        "--release",
        "app/tags/r3",
        "--on-failure",
        "rollback",
        "--json",
    )
    assert rolled.json["state"] == "failed", rolled.json["reason"]
    (told,) = rolled.json["nodes"]
    assert (rolled.code, told["result"], rolled.json["state"]) == (1, "rolled back", "failed")
    request = why(b)
    document = request["node_document"]
    assert isinstance(document, dict)
    assert (request["release"], document["classes"]) == ("app/tags/r2", {"app": {"port": 81}})
    assert b.run("status", "--json").json["rollback"]["input_release"] == "app/tags/r3"
    assert a.run("nodes", "--json").json["nodes"][0]["holds"] == []
