"""`localpuppet agent`: the service that receives triggers and runs Puppet."""

import click

from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "agent",
    short_help="Receive triggers and requests, and run Puppet for them.",
    epilog="""\b
Examples:
  localpuppet agent                   in the foreground, with its log
  localpuppet agent --debug           with more lines
  localpuppet units --help            how to make it a service

\b
The two sides as separate services, with bus nats or etcd (docs/agent.md):
  localpuppet agent --side network        as user localpuppet: the bus
  localpuppet agent --side run            as root: inbox, timer, Puppet

TERM and INT let the current run finish and then end the agent; a second one ends the run, too.
""",
)
@click.option(
    "--side",
    type=click.Choice(["both", "network", "run"]),
    default="both",
    show_default=True,
    help="The side of this process: both, the bus, or Puppet runs.",
)
@click.option("--now", is_flag=True, help="End the current run at once on TERM.")
@click.option(
    "--debug",
    is_flag=True,
    help="Also log routine drops, and do not limit the number of lines.",
)
@click.pass_obj
def agent_command(node: NodeWiring, side: str, now: bool, debug: bool) -> None:
    """Receive triggers and requests for this node; run Puppet for them and by the timer.

    At most one run is active and one waits; a trigger that arrives during a run starts one more run
    afterwards. Accepted triggers survive the agent: they stay on disk until their run is over.
    """
    from localpuppet.fleet.agent.log import AgentLog
    from localpuppet.fleet.settings.fleet import require_server_bus
    from localpuppet.fleet.wiring import agent_service
    from localpuppet.fleet.wiring.agent_child import learn
    from localpuppet.fleet.wiring.fleet import FleetWiring
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.fleet.wiring.settings import fleet_settings

    if side != "network":
        learn(node)
    if side != "both":
        require_server_bus(fleet_settings(node).bus, where=f"agent --side {side}")
    fleet, log = FleetWiring(node), AgentLog(node.clock, debug=debug)

    async def serve() -> None:
        if side == "both":
            await agent_service.serve_both(fleet, log, now=now)
        elif side == "run":
            await agent_service.serve_run(fleet, log, now=now)
        else:
            await agent_service.NetworkSide(fleet, log).serve()

    run(serve())
