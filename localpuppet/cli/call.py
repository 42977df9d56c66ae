"""`localpuppet call`: what Puppet code asks where no agent listens."""

import sys

import click

from localpuppet.cli import render
from localpuppet.wiring.node import NodeWiring


@click.command("call", hidden=True)
@click.pass_obj
def call_command(node: NodeWiring) -> None:
    """Answer one line of JSON on standard input with one on standard output.

    For the Puppet modules (docs/puppet-module.md). Leases need the agent, who stays to renew them.
    """
    from localpuppet.agent.puppet_calls import MAX_LINE, PuppetCalls
    from localpuppet.cli.run_async import run
    from localpuppet.wiring.fleet import FleetWiring
    from localpuppet.wiring.inventory import InventoryWiring

    fleet = FleetWiring(node)
    calls = PuppetCalls(
        store=fleet.connected,
        signer=fleet.signer,
        keeper=None,
        paths=fleet.paths,
        inventory=InventoryWiring(node, fleet=fleet).calls(render.Silent().note),
        clock=node.clock,
    )
    line = sys.stdin.buffer.readline(MAX_LINE)
    render.emit(run(calls.answer(line)).decode().rstrip("\n"))
