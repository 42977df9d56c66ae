"""Settings of the fleet: two processes, confirmations, kicks; files and keys that are optional."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.documents import Documents
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.fleet_settings import AgentSettings, peer_settings
from localpuppet.main import PEER_KEYS
from localpuppet.node.app import NodeApp
from localpuppet.node.settings import SettingsFile
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
    assert f"agent --side {side}: {PROBLEM}" in node.run("agent", "--side", side, code=2).err
    assert not (node.state / "agent").exists()


def test_check_refuses_two_processes_with_a_sqlite_bus(node: Node) -> None:
    node.app("notify { 'hello': }")
    node.run("check", code=0)
    socket = node.write("run/localpuppet/run.sock", "")
    done = node.run("check", code=2)
    assert f"{socket}: {PROBLEM}" in done.err
    socket.unlink()
    node.settings(agent=TWO_PROCESSES)
    assert f"agent.network: {PROBLEM}" in node.run("check", code=2).err


def test_the_names_of_its_sockets_count_only_if_it_has_two_processes(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 100)
    root.mkdir()
    buses = {"nats": {"servers": ["nats://localhost"]}}
    (root / "localpuppet.yaml").write_text(json.dumps({"bus": "nats", "buses": buses}))
    _ = FleetApp(NodeApp(str(root))).settings
    (root / "localpuppet-agent.yaml").write_text(json.dumps({"agent": TWO_PROCESSES}))
    with pytest.raises(InvalidInputError, match="has more than 107 bytes"):
        _ = FleetApp(NodeApp(str(root))).settings


def read(root: Path, agent: dict[str, Any]) -> AgentSettings:
    (root / "localpuppet.yaml").write_text(json.dumps({"agent": agent}))
    return FleetApp(NodeApp(str(root))).settings.agent


@pytest.mark.parametrize(
    ("agent", "within", "command"),
    [
        ({}, 90.0, None),
        ({"confirm": "2m", "confirm_command": ["/bin/look", "a b"]}, 120.0, ("/bin/look", "a b")),
        ({"confirm": False}, None, None),
    ],
)
def test_the_settings_of_a_confirmation_are_read(
    tmp_path: Path, agent: dict[str, Any], within: float | None, command: tuple[str, ...] | None
) -> None:
    found = read(tmp_path, agent)
    assert (found.confirm, found.confirm_command) == (within, command)


@pytest.mark.parametrize(
    ("agent", "place"),
    [
        ({"confirm": "soon"}, "agent"),
        ({"confirm": "0"}, "agent"),
        ({"confirm": True}, "agent.confirm"),
        ({"confirm_command": "/bin/look a"}, "agent.confirm_command"),
        ({"confirm_command": []}, "agent.confirm_command"),
    ],
)
def test_bad_confirmations_are_refused(tmp_path: Path, agent: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, agent)
    assert place in str(caught.value)


def variables(node: Node) -> dict[str, str]:
    return FleetApp(NodeApp(str(node.root))).own_variables


def test_puppet_gets_the_setting_only_for_kick_always(node: Node) -> None:
    node.settings(kick="always")
    assert variables(node)["LOCALPUPPET_KICK"] == "always"
    for settings in ({}, {"kick": "changed"}):
        node.settings(**settings)
        assert "LOCALPUPPET_KICK" not in variables(node)
    node.settings(kick="sometimes")
    with pytest.raises(InvalidInputError, match="kick"):
        variables(node)


def test_a_dangling_link_of_the_agents_settings_is_refused(node: Node) -> None:
    node.run("nodes", code=69)  # no bus
    (node.root / "localpuppet-agent.yaml").symlink_to("not-there.yaml")
    assert "localpuppet-agent.yaml: is a broken link" in node.run("nodes", code=2).err


class RecordedKeys(dict[str, Any]):
    def __init__(self, full: dict[str, Any]) -> None:
        super().__init__(full)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def test_commands_check_all_keys_of_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "localpuppet.yaml"
    settings = SettingsFile(
        root=tmp_path, state=tmp_path, path=file, raw={}, documents=Documents(None)
    )
    full = RecordedKeys(settings.full)
    monkeypatch.setattr(SettingsFile, "full", full)
    peer_settings(settings)
    assert full.read == PEER_KEYS
