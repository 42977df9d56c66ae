"""What a real run publishes, and what a lookup for another node reads."""

import json
from typing import Any

from localpuppet.fleet.inventory.outbox import Outbox
from tests.rigs.node import Node

CANARY = "canary-90210"


# What other processes of a machine change while nothing of the node does: tests beside this one
# make network interfaces and mounts, as containers do.
OTHERS_DO = (
    *("networking.*", "interfaces", "scope6*", "ipaddress*", "macaddress*", "mtu_*"),
    *("netmask*", "network*_*", "mountpoints.*", "filesystems"),
)


def _entry(node: Node) -> dict[str, Any] | None:
    entry = Outbox(node.state).entry()
    return None if entry is None else entry.to_dict()


def test_only_a_good_complete_run_publishes_an_entry(node: Node) -> None:
    hide = ["hidden.*", *OTHERS_DO]
    node.settings(node="web01.example.com", bus="sqlite", inventory={"hide": hide})
    facts = {
        "app_userdata": CANARY,
        "hidden": {"a": CANARY},
        "deep": [{"db": {"password": CANARY}}],
    }
    node.write("puppet/var/facts.d/canary.json", json.dumps({**facts, "tier": "gold"}))
    node.app('notify { "hello": }')
    raw = json.loads((node.root / "input.yaml").read_text())
    node.write("input.yaml", json.dumps({**raw, "parameters": {"role": ["web", "cache"]}}))
    for options in (["--noop"], ["--tags", "nothing"]):
        node.run("apply", *options, code=0)
    assert _entry(node) is None
    assert node.run("inventory", "publish").out.startswith("no entry to publish")

    done = node.run("apply")
    assert (done.code, "inventory" in done.err) == (0, False), done.err
    entry = _entry(node)
    assert entry is not None
    told = json.dumps(entry)
    assert CANARY not in told
    assert (entry["node"], entry["roles"]) == ("web01.example.com", ["web", "cache"])
    assert entry["release"] == "app/trunk"
    assert "app" in json.loads(told)["classes"]
    assert entry["facts"]["tier"] == "gold"
    assert entry["facts"]["fqdn"] == "web01.example.com"
    assert not list((node.state / "runs").glob("*/public"))

    # No agent is running: a separate process brought the entry to the bus.
    node.wait_until(Outbox(node.state).is_published)
    said = node.run("inventory", "facts", "web01.example.com", "--json")
    assert said.json["entry"] == entry, said.err
    shown = node.run("nodes", "--role", "cache", "--json").json
    listed = shown["nodes"]
    assert (shown["revision"], shown["age"]) > (0, 0)
    assert [one["node"] for one in listed] == ["web01.example.com"]
    absent = node.run("inventory", "facts", "--summary", "os.kin")
    assert "warning: no node has the fact os.kin" in absent.err
    counted = node.run("inventory", "facts", "--summary", "role", "--json").json["values"]
    assert counted == [{"value": "cache", "nodes": 1}, {"value": "web", "nodes": 1}]

    node.run("apply", code=0)
    assert _entry(node) == entry  # nothing is news
    node.app('fail("no")')
    node.run("apply", code=1)
    assert _entry(node) == entry


def test_check_warns_if_the_policy_allows_react_to_no_node(node: Node) -> None:
    node.settings(node="web01.example.com", bus="sqlite")
    node.app("")
    allow = "policy default deny\nallow\t*\t{}\t*\t*\n"

    def warned() -> bool:
        return any("allows react" in one for one in node.run("check", "--json").json["warnings"])

    assert not warned(), "without a policy every trusted node is followed"
    node.write("policies/puppet.policy", allow.format("*"))
    assert warned()
    node.write("policies/puppet.policy", allow.format("status react"))
    assert not warned()


def test_check_reads_the_policy_of_claims_and_misses_it_in_a_fleet(node: Node) -> None:
    buses = {"nats": {"servers": ["nats://127.0.0.1:1"]}}
    node.settings(node="web01.example.com", bus="nats", buses=buses)
    node.app("")
    warned = node.run("check", "--json").json["warnings"]
    assert any("each node may claim any role" in one for one in warned)
    node.write("policies/inventory.policy", "*\tweb\t*\n")
    warned = node.run("check", "--json").json["warnings"]
    assert not any("claim" in one for one in warned)
    node.write("policies/inventory.policy", "*\tweb\n")
    refused = node.run("check")
    assert (refused.code, "inventory.policy: line 1" in refused.err) == (2, True), refused.err


HIERA = """\
version: 5
defaults: {datadir: data, data_hash: yaml_data}
hierarchy:
  - {name: role, path: 'role/%{facts.role}.yaml'}
  - {name: common, path: common.yaml}
"""


def test_a_node_of_the_inventory_is_looked_up_with_the_facts_of_its_entry(node: Node) -> None:
    """The entry has the fact of the last good run, whatever the fact would be now."""
    node.settings(node="web01.example.com", bus="sqlite")
    node.app("")
    node.write("modules/app/trunk/hiera.yaml", HIERA)
    node.write("modules/app/trunk/data/role/web.yaml", "from: role\n")
    node.write("modules/app/trunk/data/common.yaml", "from: common\n")
    fact = "Facter.add(:role) {{ setcode {{ '{}' }} }}\n"
    node.write("modules/app/trunk/app/lib/facter/role.rb", fact.format("web"))
    node.run("apply", code=0)
    node.wait_until(Outbox(node.state).is_published)
    node.write("modules/app/trunk/app/lib/facter/role.rb", fact.format("db"))
    assert node.run("lookup", "from").out == "common\n"
    assert node.run("lookup", "from", "--node", "web01.example.com").out == "role\n"
    over = node.write("over.json", '{"role": "db"}')
    words = ["lookup", "from", "--node", "web01.example.com", "--facts", str(over)]
    assert node.run(*words).out == "common\n"
    unknown = node.run("lookup", "from", "--node", "web02.example.com", code=2)
    assert "web02.example.com is not in the inventory" in unknown.err
