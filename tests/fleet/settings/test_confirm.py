"""The settings for the time that a release may wait for its confirmation."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.fleet_settings import AgentSettings
from localpuppet.node.app import NodeApp


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
def test_invalid_settings_of_a_confirmation_are_refused(
    tmp_path: Path, agent: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, agent)
    assert place in str(caught.value)
