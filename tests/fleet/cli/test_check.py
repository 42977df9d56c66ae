"""`localpuppet check` and the section `agent` of both settings files."""

import json
from typing import Any

import pytest

from tests.rigs.node import Node


@pytest.mark.parametrize("file", ["localpuppet.yaml", "localpuppet-agent.yaml"])
@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        ({"warn": True}, "agent: unknown key 'warn' (did you mean 'warm'?)"),
        ({"network": {"users": "x"}}, "agent.network: unknown key 'users' (did you mean 'user'?)"),
        ({"warm": "yes"}, "agent.warm: must be a boolean, not a string"),
        ({"run_interval": 30}, "agent.run_interval: must be a string or false, not a number"),
        ({"run_cmd": {}}, "agent.run_cmd: must be a string or a list, not a mapping"),
        ({"run_interval": "often"}, "agent: 'often' is an invalid run_interval (a positive time"),
        ([], "agent: must be a mapping, not a list"),
    ],
)
def test_check_names_the_key_of_the_agent_that_is_wrong(
    node: Node, file: str, agent: Any, problem: str
) -> None:
    node.app("notify { 'hello': }")
    path = node.write(file, json.dumps({"agent": agent}))
    done = node.run("check")
    assert done.code == 2
    assert f"{path}: {problem}" in done.err
