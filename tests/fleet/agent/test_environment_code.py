"""Code of a control repository itself, in a run by the agent's fork server."""

from pathlib import Path

from tests.node.releases.environment_code import tag_control, values, values_by_puppet
from tests.rigs.forge import Forge
from tests.rigs.node import Node
from tests.rigs.warm.node import WarmNode


def test_a_warm_run_has_the_values_of_the_environment_too(node: Node, tmp_path: Path) -> None:
    control = tag_control(node, Forge(tmp_path / "forge"))
    sources = {"control": {"git": f"file://{control}"}}
    assert node.run("stage").code == 0
    host = WarmNode(node, warm=True)
    try:
        node.settings(agent={"warm": True}, allow_file_urls=True, sources=sources)
        record = host.run("noop")
        assert record["warm"], record["cold_reason"]
        assert values(host.text(record["id"])) == values_by_puppet(control, tmp_path)
    finally:
        host.end()
