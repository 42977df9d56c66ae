"""`localpuppet agent`, and `call` for Puppet code on a node without one."""

import os
import sys
from contextlib import suppress

import click

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.app import FleetApp, run
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option


@command(
    "agent", exits={0: "the agent ended on a signal", 1: "", 69: "the bus is unreachable", 75: ""}
)
@option("--side", type=click.Choice(["both", "network", "run"]), default="both", hidden=True)
@flag("--now", "On SIGTERM, end a Puppet run at once.")
@flag("--debug", "Also log routine drops, and do not limit the number of lines.")
@click.pass_obj
def agent_command(node: NodeApp, side: str, now: bool, debug: bool) -> None:
    """Run Puppet for triggers, requests and by a timer.

    The agent receives the triggers and requests for this node over the bus. At most one run is
    active and one waits: a trigger during a run starts one more run afterwards. The agent stores
    accepted triggers on disk until their run is over.

    On SIGTERM or SIGINT, the agent waits for the current run and ends. A second signal ends the
    run, too.

    Examples:
      localpuppet agent                   in the foreground, with its log
      localpuppet agent --debug           with a more detailed log
      localpuppet units --help            how to run it as a service
    """
    fleet = FleetApp(node)
    if side != "network":
        fill_settings_cache(fleet)
    # Before other imports: it names the extra that the bus needs.
    bus = fleet.settings.bus
    from localpuppet.fleet import agent_app
    from localpuppet.fleet.agent.service_log import ServiceLog
    from localpuppet.fleet.fleet_settings import require_server_bus

    if side != "both":
        require_server_bus(bus, where=f"agent --side {side}")
    log = ServiceLog(node.clock, debug=debug)
    if side == "network":
        run(agent_app.serve_network(fleet, log))
    else:
        serve = agent_app.serve_both if side == "both" else agent_app.serve_run
        run(serve(fleet, log, now=now))


def fill_settings_cache(fleet: FleetApp) -> None:
    """Read the settings and Puppet's own once, in a child that caches them on disk.

    Without Puppet's settings, the agent knows neither the node's name nor where `puppet agent
    --disable` leaves its lock.

    From that cache, the agent reads its settings without loading YAML, JSON Schema and sh: 3 MiB
    that it would keep for its lifetime. If the child fails, the agent meets and reports the same
    error.
    """
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        with suppress(LocalpuppetError, OSError):
            _ = fleet.settings
            fleet.node.documents.remember()
            fleet.node.find_puppet(ask=True)
    finally:
        os._exit(0)


@click.command("call", hidden=True)
@click.pass_obj
def call_command(node: NodeApp) -> None:
    """Answer one line of JSON on standard input with one on standard output.

    For the Puppet modules. Leases need the agent, which renews them.
    """
    from localpuppet.fleet.agent.code_calls import MAX_LINE

    fleet, note = FleetApp(node), render.note
    calls = fleet.puppet_calls(store=fleet.connected, paths=fleet.paths_of_run, note=note)
    line = sys.stdin.buffer.readline(MAX_LINE)
    render.emit(run(calls.answer(line)).decode().rstrip("\n"))
