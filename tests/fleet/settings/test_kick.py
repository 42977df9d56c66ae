"""The setting `kick`: when the report processor kicks."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.app import FleetApp
from localpuppet.node.app import NodeApp
from tests.rigs.node import Node


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
