"""A real agent with a fork server: its runs are warm, and no server outlives its agent."""

from localpuppet.base.machine.ports import NOBODY
from localpuppet.node.app import NodeApp
from tests.rigs.node import Node


def test_an_agent_makes_warm_runs_and_takes_its_server_with_it(node: Node) -> None:
    node.settings(agent={"warm": True, "run_interval": "2s"}, socket=str(node.root / "a.sock"))
    node.app("warning('as it is')")
    agent = node.start("agent")
    server = NodeApp(str(node.root)).fork_server
    metrics = node.state / "metrics.prom"

    def measured() -> bool:
        """Return whether a warm run left its server running, as a run with compiled Ruby does."""
        text = metrics.read_text() if metrics.exists() else ""
        memory = "\nlocalpuppet_fork_server_resident_memory_bytes "
        return "\nlocalpuppet_last_run_warm 1\n" in text and memory in text

    def shown() -> bool:
        kept = node.run("status", "--json").json["fork_server"]
        return kept is not None and kept["memory_bytes"] > 2**20

    def written() -> bool:
        text = node.run("status").out
        return "Fork server" in text and "started warm" in text

    # If Ruby was compiled after the first run, the agent replaces the server; until then none runs.
    for condition in (measured, shown, written, lambda: server.process() != NOBODY):
        node.wait_until(condition)
    agent.kill()
    node.finish(agent)
    node.wait_until(lambda: server.process() == NOBODY)
    assert node.run("status", "--json").json["fork_server"] is None
