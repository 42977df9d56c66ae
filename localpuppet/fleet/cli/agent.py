"""`localpuppet agent`: the service that receives triggers and runs Puppet."""

import click

from localpuppet.node.app import NodeApp
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
    from localpuppet.fleet.wiring.fleet import fleet_settings
    from localpuppet.fleet.wiring.settings_cache import fill_settings_cache

    if side != "network":
        fill_settings_cache(node)
    # Before other imports: it names the extra that the bus needs.
    bus = fleet_settings(node).bus
    from localpuppet.fleet.agent.log import AgentLog
    from localpuppet.fleet.settings.fleet import require_server_bus
    from localpuppet.fleet.wiring import agent_service
    from localpuppet.fleet.wiring.fleet import FleetWiring, run

    if side != "both":
        require_server_bus(bus, where=f"agent --side {side}")
    fleet, log = FleetWiring(node), AgentLog(node.clock, debug=debug)

    async def serve() -> None:
        if side == "both":
            await agent_service.serve_both(fleet, log, now=now)
        elif side == "run":
            await agent_service.serve_run(fleet, log, now=now)
        else:
            await agent_service.NetworkSide(fleet, log).serve()

    run(serve())
