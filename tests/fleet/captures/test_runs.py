"""The capture of a real run: kept, sent on request, collected in files, and without secrets."""

import json
from pathlib import Path

from localpuppet.base.formats.names import NodeName
from localpuppet.node.preview.node_capture import NodeCapture
from localpuppet.node.preview.nodes_directory import NodesDirectory
from tests.fleet.exports.test_runs import applied
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.node import Done, Node, completed

RIGHT = "policy default deny\nallow\tchoria={who}\tcapture\t*\t*\n"
CODE = """
  $peers = query_nodes('')
  notify { "${peers}": }
  notify { "${facts['site_colour']} ${role} ${leader('db_master')}": }
  @@file { "/tmp/${facts['clientcert']}": content => 'x' }
"""
SECRETS = [f"CANARY-{number}" for number in range(1, 12)]


def secretive(member: Member) -> None:
    """Give a node a secret wherever one can be, in its facts and its input."""
    member.node.app(CODE)
    one, two, three, four, five, six, seven = SECRETS[:7]
    data = {
        "app": "app/trunk",
        "classes": {
            "app": {
                "db_password": one,
                "options": {"api-token": two, "deep": [{"privateKey": [three]}]},
                "url": f"https://app:{four}@db.example.com/x",
                "rich": {"__ptype": "Sensitive", "__pvalue": five},
                "licence": six,
                "port": 80,
            }
        },
        "parameters": {
            "role": "web",
            "vault_pin": seven,
            "text": f"-----BEGIN PRIVATE KEY-----{seven}",
        },
    }
    member.node.write("input.yaml", json.dumps(data))
    parameters = "$db_password, $options, $url, $rich, $licence, $port"
    member.node.write(
        "modules/app/trunk/app/manifests/init.pp", f"class app({parameters}) {{ {CODE} }}"
    )
    facts = {
        "site_colour": "green",
        "site_hidden": SECRETS[7],
        "site": {"admin_password": SECRETS[8], "size": 3, "hidden": SECRETS[9]},
        "site_url": f"ldap://x:{SECRETS[10]}@ldap",
    }
    member.node.write("modules/app/trunk/app/facts.d/site.json", json.dumps(facts))


def capture(caller: Member, directory: Path, *words: str, code: int = 0) -> Done:
    return caller.run("capture", *words, str(directory), code=code)


def every_file(*directories: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file()
    }


def refuse_other_rights(a: Member, b: Member, nodes: Path) -> None:
    """Check that neither '*' nor another right of this kind includes the right."""
    assert "no policy" in capture(b, nodes, "--node", a.name, code=1).out
    for default, rights in (("allow", "*"), ("deny", "report compile catalog")):
        a.node.write(
            "policies/puppet.policy",
            f"policy default {default}\nallow\tchoria={b.name}\t{rights}\t*\t*\n",
        )
        denied = capture(b, nodes, "--node", a.name, code=1)
        assert "denied by policy line 1 (default)" in denied.out
    assert list(nodes.iterdir()) == []


def test_a_capture_has_what_the_catalog_needs_and_no_secret(fleet: Fleet, tmp_path: Path) -> None:
    hide = {"hide": ["site_hidden", "site.hidden"]}
    a, b = fleet.add("a", "b", puppet=True, inventory=hide, capture={"withhold": ["lic*"]})
    secretive(a)
    fleet.start()  # leader() needs the agent
    a.run("apply", code=0)
    a.node.wait_until(lambda: "published the last run" in a.log)
    nodes = tmp_path / "nodes"
    refuse_other_rights(a, b, nodes)
    a.node.write("policies/puppet.policy", RIGHT.format(who=b.name))
    done = capture(b, nodes, "--query", "", "--json")
    assert done.json == {"schema": 1, "directory": str(nodes), "captured": [a.name], "failed": {}}
    (file,) = NodesDirectory(nodes).files()
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert nodes.stat().st_mode & 0o777 == 0o700
    found = NodesDirectory(nodes).read(file)
    assert (found.node, found.release, found.layers) == (a.name, "app/trunk", ())
    assert found.facts["site_colour"] == "green"
    withheld = {"__ptype": "Withheld", "type": "String"}
    assert found.facts["site"] == {"size": 3, "admin_password": withheld}
    assert "site_hidden" not in found.facts
    assert '"used"' in json.dumps(found.facts["memory"])  # no inventory entry has it
    assert found.data.parameters["role"] == "web"
    assert found.data.classes["app"]["port"] == 80
    asked = {query.function: (query.arguments, query.answer) for query in found.queries}
    assert asked == {"query_nodes": (("",), []), "leader": (("db_master", 60), a.name)}

    received = every_file(nodes)
    kept = every_file(a.node.state / "captures", b.node.state)
    assert len(kept) > 1
    for path, data in {**received, **kept}.items():
        for secret in SECRETS:
            assert secret.encode() not in data, (path, secret)
    assert all(secret not in a.log + b.log + done.out + done.err for secret in SECRETS)
    assert not any(path.name == "answers.jsonl" for path in a.node.state.rglob("*"))

    # A stricter setting counts at once; a noop run and a failed one replace no capture.
    before = received[file.path]
    a.run("apply", "--noop", code=0)
    capture(b, nodes, "--query", "")
    assert every_file(nodes)[file.path] == before
    assert NodeCapture.parse(before, node=NodeName(a.name), where="") == found


def test_a_node_without_a_bus_writes_its_own_capture(node: Node, tmp_path: Path) -> None:
    node.settings(node="web01.example.com", capture={"withhold": ["colour"]})
    node.app("notify { \"${facts['rack']}\": }")
    node.write(
        "modules/app/trunk/app/facts.d/site.json",
        json.dumps({"rack": "r1", "db_pass": "CANARY", "colour": "CANARY"}),
    )
    nodes = tmp_path / "nodes"
    refused = node.run("capture", str(nodes), code=1)
    assert "this node: keeps no capture yet" in refused.err
    assert "'localpuppet apply'" in refused.err
    node.run("apply", "--noop", code=0)
    node.run("capture", str(nodes), code=1)
    assert not nodes.exists()
    node.run("apply", code=0)
    done = node.run("capture", str(nodes), "--json", code=0)
    assert done.json["captured"] == ["web01.example.com"]
    (file,) = NodesDirectory(nodes).files()
    assert file.path.stat().st_mode & 0o777 == 0o600
    found = NodesDirectory(nodes).read(file)
    assert found.facts["rack"] == "r1"
    # Before version 8, Puppet takes legacy facts.
    is_old = int(completed("puppet", "--version").out.split(".")[0]) < 8
    family = found.facts["os"]["family"]  # type: ignore[index, call-overload]
    assert found.facts.get("osfamily") == (family if is_old else None)
    assert found.release == "app/trunk"
    assert b"CANARY" not in file.path.read_bytes()


def test_an_unresponsive_node_keeps_its_file_and_is_named(any_fleet: Fleet, tmp_path: Path) -> None:
    fleet = any_fleet
    a, b, c = fleet.add("a", "b", "c", puppet=True)
    for member in (a, c):
        member.node.app("notify { 'same': }")
        member.node.write("policies/puppet.policy", RIGHT.format(who=b.name))
        applied(member)
    nodes = tmp_path / "nodes"
    fleet.start()
    assert "captured 2 of 2 nodes" in capture(b, nodes, "--query", "").out
    first = every_file(nodes)
    stamps = {path: path.stat().st_mtime_ns for path in first}
    c.node.write("policies/puppet.policy", "policy default deny\n")
    done = capture(b, nodes, "--query", "", code=1)
    assert f"{c.name}: failed: " in done.out
    assert "captured 1 of 2 nodes" in done.out
    assert {path: path.stat().st_mtime_ns for path in first} == stamps
    assert "the selection matches no node" in capture(b, nodes, "--query", "role=x", code=2).err
    capture(b, nodes / "own", code=1)
    capture(b, nodes, "--node", "../x", code=2)
    assert set(every_file(nodes)) == set(first)
