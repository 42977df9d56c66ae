"""`localpuppet lookup --node`: the facts of a node's inventory entry."""

from localpuppet.fleet.inventory.outbox import Outbox
from tests.rigs.node import Node

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
    assert node.run("apply").code == 0
    node.wait_until(Outbox(node.state).is_published)
    node.write("modules/app/trunk/app/lib/facter/role.rb", fact.format("db"))
    assert node.run("lookup", "from").out == "common\n"
    assert node.run("lookup", "from", "--node", "web01.example.com").out == "role\n"
    over = node.write("over.json", '{"role": "db"}')
    words = ["lookup", "from", "--node", "web01.example.com", "--facts", str(over)]
    assert node.run(*words).out == "common\n"
    unknown = node.run("lookup", "from", "--node", "web02.example.com")
    assert unknown.code == 2
    assert "web02.example.com is not in the inventory" in unknown.err
