"""Releases by signed request, with real Puppet: assigned, or compiled to see what they change."""

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


def why(member: Member) -> dict[str, object]:
    request: dict[str, object] = member.run("why", "--json").json["request"]
    return request


def test_a_node_takes_its_release_by_request(fleet: Fleet) -> None:
    """A refused request changes nothing."""
    a, b = fleet.add_one("a"), fleet.add_one("b", puppet=True)
    for tag, more in (("r1", ""), ("r2", ""), ("r3", "fail('broken')")):
        b.node.release(tag, CLASS % (tag, more))
    b.node.want("assigned")
    b.node.write("policies/puppet.policy", POLICY)
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
    refused = a.run("assign", b.name, "app/tags/r2", "--values", str(bad), code=1)
    assert "classes.app.port: the parameter 'port' of the class app must be Integer" in refused.err
    assert a.run("assign", b.name, "app/tags/r2", "--allow-older").err.endswith(
        "denied by policy line 1 (default): choria=a.example.com older "
        "('localpuppet policy allow a.example.com older' there allows it)\n"
    )
    good = a.node.write("good.yaml", "classes: {app: {port: 81}}\n")
    a.run("assign", b.name, "app/tags/r2", "--values", str(good), code=0)
    b.wait_log("run .* changed", 2)
    request = why(b)
    assert (request["release"], request["node_document"]) == (
        "app/tags/r2",
        {"classes": {"app": {"port": 81}}, "environment": "production", "parameters": {}},
    )

    # A rollout of a release that does not compile: back to what ran before, with its values.
    options = ["--order", "none", "--release", "app/tags/r3", "--on-failure", "rollback", "--json"]
    rolled = a.run("rollout", "run", b.name, *options)
    (told,) = rolled.json["nodes"]
    assert (rolled.code, told["result"], rolled.json["state"]) == (1, "rolled back", "failed")
    request = why(b)
    document = request["node_document"]
    assert isinstance(document, dict)
    assert (request["release"], document["classes"]) == ("app/tags/r2", {"app": {"port": 81}})
    assert b.run("status", "--json").json["rollback"]["input_release"] == "app/tags/r3"
    assert a.run("nodes", "--json").json["nodes"][0]["holds"] == []


SECRET = "sesame-4711"
BODY = """file { '/nowhere/motd': ensure => file, mode => '0600', content => '%s' }
  %s"""


def test_a_node_reports_what_another_release_would_change_without_values(fleet: Fleet) -> None:
    """Another node denies the request; no release is applied or assigned."""
    a, b, c = fleet.add_one("a"), fleet.add_one("b", puppet=True), fleet.add_one("c")
    for tag, secret, more in (
        ("r1", SECRET, "notify { 'gone': }"),
        ("r2", f"{SECRET}!", "notify { 'new': }"),
        ("r3", SECRET, f"fail('{SECRET}')"),
    ):
        b.node.release(tag, CLASS % (tag, BODY % (secret, more)))
    b.node.want("tags/r1")
    b.node.write("policies/puppet.policy", POLICY.replace("\tstatus ", "\tstatus compile "))
    c.node.write("policies/puppet.policy", POLICY)
    fleet.start()
    asked = ("rollout", "plan", "--order", "none", "--wait-timeout", "5m")
    both = f"{b.name},{c.name}"
    done = a.run(*asked, both, "--release", "app/tags/r2", "--json", code=1)
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
    done = a.run(*asked, str(b.name), "--release", "app/tags/r3")
    assert (done.code, "app/tags/r3: the catalog does not compile" in done.out) == (1, True)
    assert SECRET not in done.out + done.err
    done = a.run(*asked, str(b.name), "--release", "other/tags/r1")
    assert (done.code, "other/tags/r1 comes from another source" in done.out) == (1, True)
    assert not list((b.root / "var").glob("diff-*"))
    assert b.run("status", "--json").json["run"] is None
