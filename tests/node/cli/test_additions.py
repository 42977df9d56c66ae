"""Commands of the node layer, with and without additions by a layer above."""

import json

import click
from click.testing import CliRunner, Result

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.app import NodeApp, NodePorts
from localpuppet.node.cli.check import check_command
from localpuppet.node.cli.history import report_command, why_command
from localpuppet.node.cli.status import status_command
from localpuppet.node.node_ports import CommandAddition, CommandAdditions
from tests.rigs.node import Node


def call(
    node: Node, command: click.Command, *words: str, additions: CommandAdditions | None = None
) -> Result:
    ports = NodePorts(additions=lambda _: additions or CommandAdditions())
    return CliRunner().invoke(command, words, obj=NodeApp(str(node.root), ports=ports))


def test_commands_without_additions_show_only_fields_of_the_node_layer(node: Node) -> None:
    node.run("apply", code=0)
    for command in (status_command, why_command, report_command, check_command):
        done = call(node, command, "--json")
        assert done.exception is None, done.output
        shown = json.loads(done.output)
        assert not {"confirmation", "left_out", "exports", "kicks", "collectors"} & shown.keys()


def test_a_node_without_a_bus_cannot_ask_other_nodes(node: Node) -> None:
    done = call(node, status_command, "--node", "web01.example.com")
    assert isinstance(done.exception, InvalidInputError)
    assert "--node: this node has no bus" in str(done.exception)


def test_additions_are_shown_as_rows_and_as_fields(node: Node) -> None:
    class Adding(CommandAdditions):
        def status(self, run: object, *, rolled_back: bool) -> CommandAddition:
            return CommandAddition(fields={"weather": rolled_back}, rows=[("Weather", "rain")])

    assert "rain" in call(node, status_command, additions=Adding()).output
    shown = json.loads(call(node, status_command, "--json", additions=Adding()).output)
    assert shown["weather"] is False
