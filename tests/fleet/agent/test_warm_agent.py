"""A real agent with a fork server: its runs are warm, and no server outlives its agent."""

from localpuppet.base.machine.ports import NOBODY
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.state import open_fork_server
from tests.rigs.node import Node


def test_an_agent_makes_warm_runs_and_takes_its_server_with_it(node: Node) -> None:
    node.settings(agent={"warm": True, "run_interval": "2s"}, socket=str(node.root / "a.sock"))
    node.app("warning('as it is')")
    agent = node.start("agent")
    server = open_fork_server(NodeWiring(str(node.root)))
    metrics = node.state / "metrics.prom"
    node.wait_until(
        lambda: metrics.exists() and "\nlocalpuppet_last_run_warm 1\n" in metrics.read_text()
    )
    assert "\nlocalpuppet_fork_server_resident_memory_bytes " in metrics.read_text()
    shown = node.run("status", "--json").json
    assert shown["fork_server"]["memory_bytes"] > 2**20
    text = node.run("status").out
    assert "Fork server" in text
    assert "started warm" in text
    assert server.process() != NOBODY
    agent.kill()
    node.finish(agent)
    node.wait_until(lambda: server.process() == NOBODY)
    assert node.run("status", "--json").json["fork_server"] is None
