"""`localpuppet call`: what Puppet code asks where no agent listens."""

import sys

import click

from localpuppet.cli import render
from localpuppet.wiring.node import Parts


@click.command("call", hidden=True)
@click.pass_obj
def call_command(parts: Parts) -> None:
    """Answer one line of JSON on standard input with one on standard output.

    For the Puppet modules (docs/puppet-module.md). Leases need the agent, who stays to renew them.
    """
    from localpuppet.agent.puppet_calls import MAX_LINE, Calls
    from localpuppet.cli.run_async import run
    from localpuppet.triggers.sending import paths_of
    from localpuppet.wiring.fleet import FleetParts

    fleet = FleetParts(parts)
    calls = Calls(
        store=fleet.connected,
        signer=fleet.signer,
        keeper=None,
        paths=lambda wanted: paths_of(parts.records, wanted),
        clock=parts.clock,
    )
    line = sys.stdin.buffer.readline(MAX_LINE)
    render.emit(run(calls.answer(line)).decode().rstrip("\n"))
