"""`localpuppet agent`: the service that hears triggers and runs Puppet."""

import click

from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "agent",
    short_help="Hear triggers and requests for this node, and run for them.",
    epilog="""\b
Examples:
  localpuppet agent                   in the foreground, with its log
  localpuppet agent --debug           also what is not worth a line otherwise
  localpuppet units --help            how to make it a service

\b
The two sides apart, each as a service of its own (docs/agent.md):
  localpuppet agent --side network        as user localpuppet: the bus
  localpuppet agent --side run            as root: inbox, timer, Puppet

TERM and INT let a run that is on finish and then end the agent; a second one ends the run, too.
""",
)
@click.option(
    "--side",
    type=click.Choice(["both", "network", "run"]),
    default="both",
    show_default=True,
    help="What this process is: both sides in one, the one on the bus, or the one that runs.",
)
@click.option("--now", is_flag=True, help="On TERM end the run that is on at once.")
@click.option(
    "--debug",
    is_flag=True,
    help="Also log routine drops, and do not limit the number of lines.",
)
@click.pass_obj
def agent_command(node: NodeWiring, side: str, now: bool, debug: bool) -> None:
    """Hear triggers and requests for this node, and run Puppet for them and by the timer.

    At most one run is on and one waits; a trigger that comes during a run starts one more after
    it. What was accepted survives the agent: it is on the disk until its run is over.
    """
    from localpuppet.fleet.agent.log import AgentLog
    from localpuppet.fleet.wiring import agent_service
    from localpuppet.fleet.wiring.agent_child import learn
    from localpuppet.fleet.wiring.fleet import FleetWiring
    from localpuppet.fleet.wiring.run_async import run

    if side != "network":
        learn(node)
    fleet, log = FleetWiring(node), AgentLog(node.clock, debug=debug)

    async def serve() -> None:
        if side == "both":
            await agent_service.serve_both(fleet, log, now=now)
        elif side == "run":
            await agent_service.serve_run(fleet, log, now=now)
        else:
            await agent_service.NetworkSide(fleet, log).serve()

    run(serve())
