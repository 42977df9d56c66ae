"""The agent's settings file is optional; a broken link is not a missing file."""

from tests.rigs.node import Node


def test_a_dangling_link_of_the_agents_settings_is_refused(node: Node) -> None:
    assert node.run("nodes").code == 0
    (node.root / "localpuppet-agent.yaml").symlink_to("not-there.yaml")
    done = node.run("nodes")
    assert done.code == 2, done.err
    assert "localpuppet-agent.yaml: is a broken link" in done.err
