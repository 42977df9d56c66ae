"""An agent in two processes whose bus is a SQLite file: refused before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.app import FleetApp
from localpuppet.node.app import NodeApp
from tests.rigs.node import Node

PROBLEM = "an agent in two processes cannot use a bus in a SQLite file (set 'bus' to nats or etcd"
TWO_PROCESSES = {"network": {"user": "daemon"}}
FILES: list[dict[str, Any]] = [{}, {"bus": "sqlite"}]


@pytest.mark.parametrize("bus", FILES, ids=["default", "sqlite"])
def test_settings_of_two_processes_need_a_server(tmp_path: Path, bus: dict[str, Any]) -> None:
    (tmp_path / "localpuppet.yaml").write_text(json.dumps(bus))
    agent = tmp_path / "localpuppet-agent.yaml"
    agent.write_text(json.dumps({"agent": TWO_PROCESSES}))
    with pytest.raises(InvalidInputError) as caught:
        _ = FleetApp(NodeApp(str(tmp_path))).settings
    assert str(caught.value).startswith(f"{agent}: agent.network: {PROBLEM}")


@pytest.mark.parametrize("side", ["run", "network"])
def test_neither_side_of_an_agent_starts(node: Node, side: str) -> None:
    done = node.run("agent", "--side", side)
    assert done.code == 2
    assert f"agent --side {side}: {PROBLEM}" in done.err
    assert not (node.state / "agent").exists()


def test_check_refuses_two_processes_with_a_sqlite_bus(node: Node) -> None:
    node.app("notify { 'hello': }")
    assert node.run("check").code == 0
    socket = node.write("run/localpuppet/run.sock", "")
    done = node.run("check")
    assert done.code == 2
    assert f"{socket}: {PROBLEM}" in done.err
    socket.unlink()
    node.settings(agent=TWO_PROCESSES)
    done = node.run("check")
    assert done.code == 2
    assert f"agent.network: {PROBLEM}" in done.err


def test_the_names_of_its_sockets_count_only_if_it_has_two_processes(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 100)
    root.mkdir()
    (root / "localpuppet.yaml").write_text(
        json.dumps({"bus": "nats", "buses": {"nats": {"servers": ["nats://localhost"]}}})
    )
    _ = FleetApp(NodeApp(str(root))).settings
    (root / "localpuppet-agent.yaml").write_text(json.dumps({"agent": TWO_PROCESSES}))
    with pytest.raises(InvalidInputError, match="has more than 107 bytes"):
        _ = FleetApp(NodeApp(str(root))).settings
