"""`localpuppet web`: show the fleet in a browser."""

from pathlib import Path

import click

from localpuppet.node.cli import render
from localpuppet.node.cli.command import Command
from localpuppet.node.wiring.node import NodeWiring

LISTEN = "127.0.0.1:8141"


@click.command(
    "web",
    cls=Command,
    exits={0: "ended by ^C", 1: "", 69: ""},
)
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    default=LISTEN,
    show_default=True,
    help="Listen here; on other than loopback addresses over TLS, for the people in web.people.",
)
@click.option(
    "--actions",
    is_flag=True,
    help="Allow the dashboard to send requests and rollout commands in your name.",
)
@click.option(
    "--site",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Show the plan of this site.  [default: the inventory]",
)
@click.option("--open", "opens", is_flag=True, help="Open the dashboard in a browser.")
@click.pass_obj
def web_command(
    node: NodeWiring, listen: str, actions: bool, site: Path | None, opens: bool
) -> None:
    """Serve the dashboard of the fleet.

    The dashboard shows nodes, runs, holds, facts, kicks and rollouts, live, until ^C. It keeps the
    results of runs for 90 days. If the bus is unreachable, it shows when its data was last updated.

    Without --actions, the dashboard is read-only. With it, the dashboard sends requests in your
    name, and the policies of the nodes decide. On an address other than loopback, it uses TLS and
    is read-only; people in web.people need a certificate of identity.ca.

    Examples:
      localpuppet web                        print a link, valid once
      localpuppet web --open                 and open it in a browser
      localpuppet web --listen 127.0.0.1:0   on a free port
      localpuppet web --actions              allow requests to nodes
      localpuppet web --listen 0.0.0.0:8443  over TLS, for the people in web.people
      ssh -L 8141:127.0.0.1:8141 HOST        forward the port of another machine
    """
    from localpuppet.fleet.agent.log import AgentLog
    from localpuppet.fleet.wiring.fleet import FleetWiring
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.web.wiring.dashboard import opening, serve_page

    fleet, log = FleetWiring(node), AgentLog(node.clock, debug=False)
    with opening(node) as open_:

        def opened(address: str, link: str) -> None:
            if link:
                render.emit(f"dashboard at {address}; this link works once, for ten minutes:")
                render.emit(link)
            else:
                render.emit(f"dashboard at {address}, for certificates of the people in web.people")
            if opens and not open_(link or address):
                render.say("# found no browser: open the address by hand", err=True)

        run(serve_page(fleet, log, listen, opened, actions=actions, site=site))
