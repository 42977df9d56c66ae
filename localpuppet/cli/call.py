"""`localpuppet call`: what Puppet code asks where no agent listens."""

import sys

import click

from localpuppet.cli import render
from localpuppet.cli.wiring import Parts


@click.command("call", hidden=True)
@click.pass_obj
def call_command(parts: Parts) -> None:
    """Answer one line of JSON on standard input with one on standard output.

    For the Puppet modules (docs/puppet-module.md). Leases need the agent, who stays to renew them.
    """
    from localpuppet.calls import MAX_LINE, Calls
    from localpuppet.cli.fleet import FleetParts, paths_of, run

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
