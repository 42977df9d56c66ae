"""`localpuppet call`: answers Puppet code on a node without an agent."""

import sys
from functools import partial

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render


@click.command("call", hidden=True)
@click.pass_obj
def call_command(node: NodeApp) -> None:
    """Answer one line of JSON on standard input with one on standard output.

    For the Puppet modules. Leases need the agent, which renews them.
    """
    from localpuppet.fleet.agent.puppet_calls import MAX_LINE
    from localpuppet.fleet.wiring.fleet import FleetWiring, paths_of_run, run
    from localpuppet.fleet.wiring.inventory import InventoryWiring
    from localpuppet.fleet.wiring.puppet_calls import puppet_calls

    fleet = FleetWiring(node)
    inventory, note = InventoryWiring(node, fleet=fleet), render.QuietObserver().note
    calls = puppet_calls(
        fleet,
        inventory.calls(note),
        inventory.export_calls(note),
        store=fleet.connected,
        paths=partial(paths_of_run, node),
    )
    line = sys.stdin.buffer.readline(MAX_LINE)
    render.emit(run(calls.answer(line)).decode().rstrip("\n"))
